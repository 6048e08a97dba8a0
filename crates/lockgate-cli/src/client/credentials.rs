//! With which access key requests are signed.

use hyper::header::HeaderValue;
use lockgate_server::Secret;

/// An access key, and the region it is used in.
#[derive(Clone, Debug)]
pub(crate) struct Credentials {
    pub(crate) id: String,
    pub(crate) secret: Secret,
    pub(crate) region: String,
}

impl Credentials {
    /// From the variables that AWS's tools read: `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, and
    /// for the region `AWS_REGION` or `AWS_DEFAULT_REGION`, else `us-east-1`. `None` if there are not
    /// both of the first two.
    pub(crate) fn from_environment() -> Option<Self> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let id = variable("AWS_ACCESS_KEY_ID").filter(|id| HeaderValue::from_str(id).is_ok())?;
        Some(Self {
            id,
            secret: Secret::new(variable("AWS_SECRET_ACCESS_KEY")?),
            region: variable("AWS_REGION")
                .or_else(|| variable("AWS_DEFAULT_REGION"))
                .unwrap_or_else(|| "us-east-1".to_owned()),
        })
    }
}
