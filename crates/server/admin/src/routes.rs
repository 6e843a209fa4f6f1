//! The requests.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use quorate_node::{Change, MemberConfig};
use quorate_runtime::{Handle, NodeHandle};
use quorate_types::{NodeId, NodeSet, limits};
use tokio::sync::oneshot;

use crate::LogCounts;
use crate::access::{self, Access};
use crate::disk::Disk;
use crate::loss::Loss;
use crate::metrics;
use crate::status::{
    AddMember, Changed, KeepMember, Problem, Progress, Recover, RemoveMember, Status, ViewStatus,
};

/// The longest request body.
const BODY_BYTES_MAX: usize = 16 * 1024;
/// How long a membership change may take before the request is answered without a result.
const CHANGE_MAX: Duration = Duration::from_secs(12);
/// How often, and how many times at most, the node's facts are read until they are of a new epoch.
const FACTS_EVERY: Duration = Duration::from_millis(50);
const FACTS_TRIES: u32 = 40;

/// One node's endpoint.
#[derive(Clone)]
struct Endpoint {
    handle: Handle,
    node: usize,
    log: Arc<LogCounts>,
    disk: Option<Disk>,
}

impl Endpoint {
    fn node(&self) -> &NodeHandle {
        &self.handle.nodes()[self.node]
    }
}

/// The routes of the node at this place.
pub(crate) fn router(
    handle: Handle,
    node: usize,
    log: Arc<LogCounts>,
    disk: Option<Disk>,
    access: &Arc<Access>,
) -> Router {
    let token = middleware::from_fn_with_state(Arc::clone(access), access::check_token);
    let host = middleware::from_fn_with_state(Arc::clone(access), access::check_host);
    let changes = Router::new()
        .route("/member/add", post(add_member))
        .route("/member/remove", post(remove_member))
        .route("/member/keep", post(keep_member))
        .route("/recover", post(recover))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .route_layer(token);
    Router::new()
        .route("/", get(async || Html(include_str!("page.html"))))
        .route("/health", get(health))
        .route("/view", get(view))
        .route("/status", get(status))
        .route("/metrics", get(metrics_text))
        .merge(changes)
        .layer(host)
        .with_state(Endpoint { handle, node, log, disk })
}

async fn health(State(endpoint): State<Endpoint>) -> Response {
    let reason = if endpoint.handle.is_stopping() {
        Some("the node is stopping".to_owned())
    } else {
        endpoint.node().not_serving()
    };
    match reason {
        None => (StatusCode::OK, Json(Health { serving: true, reason: None })).into_response(),
        Some(reason) => {
            let body = Health { serving: false, reason: Some(reason) };
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
    }
}

#[derive(serde::Serialize)]
struct Health {
    serving: bool,
    reason: Option<String>,
}

async fn view(State(endpoint): State<Endpoint>) -> Json<ViewStatus> {
    Json(ViewStatus::of(endpoint.node()))
}

async fn status(State(endpoint): State<Endpoint>) -> Json<Status> {
    Json(Status::of(endpoint.node(), endpoint.disk.as_ref()))
}

async fn metrics_text(State(endpoint): State<Endpoint>) -> Response {
    match metrics::text(&endpoint.handle, endpoint.node, &endpoint.log, endpoint.disk.as_ref()) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// What a request says of a member; the answer to one that can't be read, or whose id can't be one.
fn parsed<M>(
    body: Result<Json<M>, JsonRejection>,
    id: impl FnOnce(&M) -> u16,
) -> Result<M, (StatusCode, String)> {
    let Json(member) = body.map_err(|rejection| (rejection.status(), rejection.body_text()))?;
    check_id(id(&member)).map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
    Ok(member)
}

async fn add_member(
    State(endpoint): State<Endpoint>,
    body: Result<Json<AddMember>, JsonRejection>,
) -> Response {
    let member = match parsed(body, |member| member.id) {
        Ok(member) => member,
        Err((status, text)) => return problem(status, text),
    };
    for (what, address) in
        [("peer", &member.peer), ("client", &member.client), ("admin", &member.admin)]
    {
        if !is_address(address) {
            let error = format!("{what}: '{address}' is not an address; write host:port");
            return problem(StatusCode::BAD_REQUEST, error);
        }
    }
    let address = MemberConfig {
        node: NodeId(member.id),
        peer_address: member.peer,
        client_address: member.client,
        admin_address: member.admin,
    };
    change(&endpoint, Change::Add(address)).await
}

async fn remove_member(
    State(endpoint): State<Endpoint>,
    body: Result<Json<RemoveMember>, JsonRejection>,
) -> Response {
    let member = match parsed(body, |member| member.id) {
        Ok(member) => member,
        Err((status, text)) => return problem(status, text),
    };
    let removal = Change::Remove { node: NodeId(member.id), at_once: member.now };
    match changed(&endpoint, removal).await {
        Ok(epoch) => {
            let leaving = progress(&endpoint, epoch, member.id).await;
            Json(Changed { epoch, leaving }).into_response()
        }
        Err(problem) => problem,
    }
}

async fn keep_member(
    State(endpoint): State<Endpoint>,
    body: Result<Json<KeepMember>, JsonRejection>,
) -> Response {
    let member = match parsed(body, |member| member.id) {
        Ok(member) => member,
        Err((status, text)) => return problem(status, text),
    };
    change(&endpoint, Change::Keep(NodeId(member.id))).await
}

async fn recover(
    State(endpoint): State<Endpoint>,
    body: Result<Json<Recover>, JsonRejection>,
) -> Response {
    let Json(Recover { lost, dry_run }) = match body {
        Ok(body) => body,
        Err(rejection) => return problem(rejection.status(), rejection.body_text()),
    };
    if let Some(error) = lost.iter().find_map(|id| check_id(*id).err()) {
        return problem(StatusCode::BAD_REQUEST, error);
    }
    let lost: NodeSet = lost.into_iter().map(NodeId).collect();
    if dry_run {
        return Json(Loss::of(endpoint.node(), lost)).into_response();
    }
    change(&endpoint, Change::Recover { lost }).await
}

/// The progress of a removal that began in `epoch` or before. The node's facts are a little older than
/// its answer, so they are read until they reach that epoch.
async fn progress(endpoint: &Endpoint, epoch: u64, id: u16) -> Option<Progress> {
    for _ in 0..FACTS_TRIES {
        let view = ViewStatus::of(endpoint.node());
        if view.epoch >= epoch {
            return Progress::of(&view.members, id);
        }
        tokio::time::sleep(FACTS_EVERY).await;
    }
    None
}

async fn change(endpoint: &Endpoint, change: Change) -> Response {
    match changed(endpoint, change).await {
        Ok(epoch) => Json(Changed { epoch, leaving: None }).into_response(),
        Err(problem) => problem,
    }
}

/// The epoch that has the change, or the answer that says why there is none.
async fn changed(endpoint: &Endpoint, change: Change) -> Result<u64, Response> {
    let (sender, receiver) = oneshot::channel();
    endpoint.node().change_members(change, move |result| {
        // A client that has gone waits no more.
        let _ = sender.send(result);
    });
    match tokio::time::timeout(CHANGE_MAX, receiver).await {
        Ok(Ok(Ok(epoch))) => Ok(epoch.0),
        Ok(Ok(Err(error))) => Err(problem(StatusCode::CONFLICT, error)),
        Ok(Err(_)) | Err(_) => Err(problem(
            StatusCode::GATEWAY_TIMEOUT,
            "no majority has answered yet; the change may or may not happen, look at /view".into(),
        )),
    }
}

fn check_id(id: u16) -> Result<(), String> {
    if (1..=limits::NODE_ID_MAX).contains(&id) {
        return Ok(());
    }
    Err(format!("id: {id} is not a node id; choose one from 1 to {}", limits::NODE_ID_MAX))
}

/// Whether this has the form `host:port`.
fn is_address(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

pub(crate) fn problem(status: StatusCode, error: String) -> Response {
    (status, Json(Problem { error })).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for good in ["127.0.0.1:7401", "[::1]:7401", "node-1.example:1"] {
            assert!(is_address(good), "{good}");
        }
        for bad in ["", "7401", ":7401", "host:", "host:0", "host:70000", "host:x"] {
            assert!(!is_address(bad), "{bad}");
        }
    }

    #[test]
    fn ids_are_bounded() {
        assert!(check_id(1).is_ok() && check_id(limits::NODE_ID_MAX).is_ok());
        assert!(check_id(0).is_err() && check_id(limits::NODE_ID_MAX + 1).is_err());
    }
}
