//! Parameters of a URL that are the store's own.

use std::fmt;

use lockgate_core::RecordsError;
use percent_encoding::percent_decode_str;

/// A URL of a server, of which the parameters behind the `?` are taken apart. It does not show itself, because it may hold a
/// password.
#[derive(Clone)]
pub struct Url {
    /// Everything before the parameters.
    pub base: String,
    parameters: Vec<(String, String)>,
}

/// The parameters begin behind the login, because a password may have a question mark in it. So an `@` in a parameter is
/// written as `%40`.
fn split_query(url: &str) -> (&str, &str) {
    let login = url.rfind('@').unwrap_or(0);
    match url[login..].split_once('?') {
        Some((_, query)) => (&url[..url.len() - query.len() - 1], query),
        None => (url, ""),
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Url").finish_non_exhaustive()
    }
}

impl Url {
    /// Takes a URL apart.
    ///
    /// # Errors
    /// [`RecordsError::Invalid`] if a parameter has no value, or comes twice.
    pub fn of(url: &str) -> Result<Self, RecordsError> {
        let (base, query) = split_query(url);
        let mut parameters: Vec<(String, String)> = Vec::new();
        for parameter in query.split('&').filter(|it| !it.is_empty()) {
            let Some((name, value)) = parameter.split_once('=') else {
                let why = format!("the URL's parameter {parameter:?} has no value");
                return Err(RecordsError::Invalid { why });
            };
            if parameters.iter().any(|(given, _)| given == name) {
                let why = format!("the URL has the parameter {name:?} twice");
                return Err(RecordsError::Invalid { why });
            }
            parameters.push((name.to_owned(), value.to_owned()));
        }
        let base = base.to_owned();
        Ok(Self { base, parameters })
    }

    /// Takes a parameter out, if it is there.
    pub fn take(&mut self, name: &str) -> Option<String> {
        let at = self
            .parameters
            .iter()
            .position(|(given, _)| given == name)?;
        let (_, value) = self.parameters.swap_remove(at);
        Some(percent_decode_str(&value).decode_utf8_lossy().into_owned())
    }

    /// The URL with the parameters that are left.
    #[must_use]
    pub fn rest(&self) -> String {
        let left = self.parameters.iter();
        let left: Vec<_> = left
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        match left.is_empty() {
            true => self.base.clone(),
            false => format!("{}?{}", self.base, left.join("&")),
        }
    }

    /// That no parameters are left.
    ///
    /// # Errors
    /// [`RecordsError::Invalid`] with the name of one that is not among those that `known` names.
    pub fn ends(&self, known: &str) -> Result<(), RecordsError> {
        match self.parameters.first() {
            None => Ok(()),
            Some((name, _)) => {
                let why = format!("the URL's parameter {name:?} is not known: there are {known}");
                Err(RecordsError::Invalid { why })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_taken_and_others_stay_or_are_told() {
        let mut url = Url::of("redis://u:a?b@h/0?store=a%5Fb&x=1").unwrap();
        assert_eq!(url.base, "redis://u:a?b@h/0");
        assert_eq!(url.take("store").as_deref(), Some("a_b"));
        assert_eq!(url.take("store"), None);
        assert_eq!(url.rest(), "redis://u:a?b@h/0?x=1");
        let told = url.ends("store").unwrap_err().to_string();
        assert!(told.contains("\"x\" is not known"), "{told}");
        assert!(!format!("{url:?}").contains("a?b"));
        assert!(Url::of("redis://h?store").is_err());
        let without = Url::of("redis://u:a?b@h/0").unwrap();
        assert_eq!(without.base, "redis://u:a?b@h/0");
        assert_eq!(without.rest(), without.base);
        assert!(Url::of("redis://h?store=a&store=b").is_err());
    }
}
