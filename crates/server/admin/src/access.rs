//! Access: which requests may read, and which may change anything.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::routes::problem;
use crate::token::Token;

/// The rules for requests to one endpoint.
#[derive(Debug)]
pub(crate) struct Access {
    /// Names under which the node is reached, besides its addresses and `localhost`.
    pub(crate) names: Vec<String>,
    /// The token that a change must give; without a token, the reason.
    pub(crate) token: Result<Token, String>,
}

/// Refuses requests under a name that is not the node's. A browser on the operators' network can be
/// sent to a page whose name first stands for the page's server and then for this node, so that the
/// browser takes both for one. The name in the request reveals that. An address can't be used like
/// that.
pub(crate) async fn check_host(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    match access.refuses_host(request.headers()) {
        Some(error) => problem(StatusCode::FORBIDDEN, error),
        None => next.run(request).await,
    }
}

/// Refuses requests that don't give the token. The check comes before the body is read.
pub(crate) async fn check_token(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    match access.refuses_change(request.headers()) {
        Some((status, error)) => problem(status, error),
        None => next.run(request).await,
    }
}

impl Access {
    fn refuses_host(&self, headers: &HeaderMap) -> Option<String> {
        let mut hosts = headers.get_all(header::HOST).iter();
        // Browsers always name a host; monitors that speak HTTP/1.0 may not.
        let host = hosts.next()?;
        let named = host.to_str().ok().map(without_port);
        if hosts.next().is_none() && named.is_some_and(|name| self.has_name(name)) {
            return None;
        }
        let host = String::from_utf8_lossy(host.as_bytes());
        Some(format!(
            "host: '{host}' is not a name of this node; ask it by its address, or add the name to \
             [admin] hosts in its configuration"
        ))
    }

    fn has_name(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        let known = self.names.iter().map(String::as_str).chain(["localhost"]);
        name.parse::<IpAddr>().is_ok()
            || known.into_iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    fn refuses_change(&self, headers: &HeaderMap) -> Option<(StatusCode, String)> {
        let token = match &self.token {
            Ok(token) => token,
            Err(why) => return Some((StatusCode::FORBIDDEN, format!("token: {why}"))),
        };
        let given = headers.get(header::AUTHORIZATION);
        let given = given.and_then(|given| given.as_bytes().strip_prefix(b"Bearer "));
        if given.is_some_and(|given| token.is(given)) {
            return None;
        }
        let what = if given.is_some() { "is not the one given" } else { "is missing" };
        Some((
            StatusCode::UNAUTHORIZED,
            format!(
                "token: who changes the members must know this node's token, which {what}; it is \
                 in {}, which quorate member reads with --token-file",
                token.file().display()
            ),
        ))
    }
}

/// The host of `host:port` or of a host alone; of an IPv6 address without its brackets.
fn without_port(host: &str) -> &str {
    if let Some((address, _)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address;
    }
    host.rsplit_once(':').map_or(host, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> Access {
        Access { names: vec!["node-1.example".to_owned()], token: Err("there is none".to_owned()) }
    }

    fn refused(hosts: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, host.parse().unwrap());
        }
        access().refuses_host(&headers).is_some()
    }

    #[test]
    fn a_node_is_asked_by_address_or_by_a_name_of_its_own() {
        for good in [
            "127.0.0.1",
            "127.0.0.1:9400",
            "10.1.2.3:80",
            "[::1]:9400",
            "[::1]",
            "localhost:9400",
            "LOCALHOST",
            "node-1.example:9400",
            "Node-1.Example.",
        ] {
            assert!(!refused(&[good]), "{good}");
        }
        assert!(!refused(&[]), "HTTP/1.0 names none");
    }

    #[test]
    fn other_names_are_refused() {
        for bad in [
            "evil.example",
            "evil.example:9400",
            "127.0.0.1.evil.example",
            "node-1.example.evil.example",
            "localhost.evil.example",
            "",
            ":9400",
            "[evil.example]:9400",
        ] {
            assert!(refused(&[bad]), "{bad}");
        }
        assert!(refused(&["127.0.0.1", "evil.example"]), "two names are one too many");
    }
}
