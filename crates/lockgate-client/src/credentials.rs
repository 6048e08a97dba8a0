//! With which access key requests are signed.

use lockgate_sigv4::Secret;

/// An access key, and the region it is used in.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The id of the key.
    pub id: String,
    /// Its secret.
    pub secret: Secret,
    /// The region of the server (`serve --region`): `us-east-1` unless it was told another.
    pub region: String,
}

impl Credentials {
    /// Takes an access key for the region `us-east-1`.
    #[must_use]
    pub fn new(id: impl Into<String>, secret: Secret) -> Self {
        Self {
            id: id.into(),
            secret,
            region: "us-east-1".to_owned(),
        }
    }

    /// Reads the variables that AWS's tools read: `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, and
    /// for the region `AWS_REGION` or `AWS_DEFAULT_REGION`, else `us-east-1`. `None` if there are not
    /// both of the first two.
    #[must_use]
    pub fn from_environment() -> Option<Self> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let id = variable("AWS_ACCESS_KEY_ID")?;
        let secret = Secret::new(variable("AWS_SECRET_ACCESS_KEY")?);
        let region = variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION"));
        Some(Self {
            region: region.unwrap_or_else(|| "us-east-1".to_owned()),
            ..Self::new(id, secret)
        })
    }
}
