//! Requests that go wrong, one after another: `--faults FILE`.
//!
//! ```text
//! FILE        {"rule": 7, "skip": 3, "count": 1, "method": "any-write", "key": "_blobs/", "kind": "fail-500"}
//!             {…, "then": {"skip": 0, "count": 1, "method": "GET", "kind": "drop"}}
//! FILE.seen   {"rule": 7, "seen": ["PUT /bucket/key?query", …], "struck": 1,
//!              "then": {"seen": […], "struck": 0}}
//! ```
//!
//! FILE is looked at for each request, and may be there or not. Of the requests that `method` and
//! `key` name, the first `skip` are served, the next `count` go wrong, and what follows is served
//! again. All of them are listed in FILE.seen before they are served, so whoever counts them once
//! can let each fail after another. A `rule` is another one if its text is another. What `then` says
//! begins with the first request after one that the rule before it has struck, so that two calls, or
//! more, of one operation can fail, each in its own way.
//!
//! 1. Which requests: `method` is PUT, POST, DELETE, GET, HEAD, `any-write` (the first three) or
//!    `any`; `key` is a part of path and query.
//! 2. How: `fail-500`, `fail-403`, `full` (507), `hang` and `drop` happen before anything is done;
//!    `apply-then-fail`, `apply-then-hang` and `apply-then-drop` after it; `truncate` stores half of
//!    the body, or breaks an answer off after half of it; `none` only counts.

use std::path::PathBuf;
use std::sync::Mutex;

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Method, Request, Response};
use s3s::Body;
use s3s::service::S3Service;
use serde_json::{Value, json};

/// Marks a request of whose body half is to be stored.
#[derive(Clone, Copy)]
pub struct Half;

/// The control file, and what has come of it.
pub struct Faults {
    file: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    text: String,
    id: Value,
    /// Each begins when the one before it has struck.
    rules: Vec<Rule>,
}

struct Rule {
    seen: Vec<String>,
    struck: u64,
    skip: usize,
    count: usize,
    method: String,
    key: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    None,
    Fail(u16),
    Hang,
    Drop,
    Truncate,
    ApplyThenFail,
    ApplyThenHang,
    ApplyThenDrop,
}

type Answer = std::io::Result<Response<Body>>;

impl Faults {
    pub fn new(file: Option<PathBuf>) -> Self {
        Self { file, state: Mutex::default() }
    }

    /// Serves a request, or lets it go wrong.
    pub async fn serve(&self, service: &S3Service, request: Request<Incoming>) -> Answer {
        let mut request = request.map(Body::from);
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        match self.kind(&request) {
            Kind::None => call(service, request).await,
            Kind::Fail(status) => {
                // Who is answered in the middle of a body may see a broken connection instead.
                let _ = request.into_body().collect().await;
                Ok(failure(status))
            }
            Kind::Hang => std::future::pending().await,
            Kind::Drop => Err(std::io::ErrorKind::ConnectionAborted.into()),
            Kind::Truncate if is_read => cut(call(service, request).await?).await,
            Kind::Truncate => {
                request.extensions_mut().insert(Half);
                call(service, request).await
            }
            Kind::ApplyThenFail => {
                call(service, request).await?;
                Ok(failure(500))
            }
            Kind::ApplyThenHang => {
                call(service, request).await?;
                std::future::pending().await
            }
            Kind::ApplyThenDrop => {
                call(service, request).await?;
                Err(std::io::ErrorKind::ConnectionAborted.into())
            }
        }
    }

    fn kind(&self, request: &Request<Body>) -> Kind {
        let Some(file) = &self.file else { return Kind::None };
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let mut state = self.state.lock().unwrap();
        if state.text != text {
            let rule: Value = serde_json::from_str(&text).unwrap_or_default();
            *state = State { id: rule["rule"].clone(), rules: Rule::all(&rule), text };
        }
        let place = request.uri().path_and_query().map_or("", |place| place.as_str());
        let mut kind = Kind::None;
        let mut is_named = false;
        for rule in &mut state.rules {
            let has_struck = rule.struck > 0;
            if rule.names(request.method(), place) {
                is_named = true;
                kind = rule.take(format!("{} {place}", request.method()));
            }
            if kind != Kind::None || !has_struck {
                break;
            }
        }
        if !is_named {
            return Kind::None;
        }
        let shown = shown(&state).to_string();
        let (new, to) = (file.with_extension("new"), file.with_extension("seen"));
        std::fs::write(&new, shown).and_then(|()| std::fs::rename(new, to)).expect("a writable folder");
        kind
    }
}

/// What has come of the rules, each within the one before it.
fn shown(state: &State) -> Value {
    let of = |rule: &Rule| json!({ "seen": rule.seen, "struck": rule.struck });
    let mut shown = state.rules.iter().rev().fold(Value::Null, |then, rule| {
        let mut shown = of(rule);
        if then != Value::Null {
            shown["then"] = then;
        }
        shown
    });
    shown["rule"] = state.id.clone();
    shown
}

impl Rule {
    /// A rule and those that follow it; none where there is no rule.
    fn all(rule: &Value) -> Vec<Self> {
        let chain = std::iter::successors(Some(rule), |rule| rule.get("then"));
        chain.filter(|rule| rule.is_object()).map(Self::parse).collect()
    }

    fn parse(rule: &Value) -> Self {
        let word = |name: &str, other: &str| rule[name].as_str().unwrap_or(other).to_owned();
        let number = |name: &str, other: usize| {
            rule[name].as_u64().map_or(other, |number| usize::try_from(number).unwrap_or(other))
        };
        Self {
            seen: Vec::new(),
            struck: 0,
            skip: number("skip", 0),
            count: number("count", usize::MAX),
            method: word("method", "any"),
            key: word("key", ""),
            kind: Kind::parse(&word("kind", "none")),
        }
    }

    /// Counts a request that it names, and says what happens to it.
    fn take(&mut self, request: String) -> Kind {
        self.seen.push(request);
        let strikes = self.seen.len() > self.skip && self.seen.len() - self.skip <= self.count;
        self.struck += u64::from(strikes);
        if strikes { self.kind } else { Kind::None }
    }

    fn names(&self, method: &Method, place: &str) -> bool {
        let is_write = matches!(*method, Method::PUT | Method::POST | Method::DELETE);
        let is_meant = match self.method.as_str() {
            "any" => true,
            "any-write" => is_write,
            one => one == method.as_str(),
        };
        is_meant && place.contains(&self.key)
    }
}

impl Kind {
    fn parse(word: &str) -> Self {
        match word {
            "none" => Self::None,
            "fail-500" => Self::Fail(500),
            "fail-403" => Self::Fail(403),
            "full" => Self::Fail(507),
            "hang" => Self::Hang,
            "drop" => Self::Drop,
            "truncate" => Self::Truncate,
            "apply-then-fail" => Self::ApplyThenFail,
            "apply-then-hang" => Self::ApplyThenHang,
            "apply-then-drop" => Self::ApplyThenDrop,
            _ => panic!("{word} is no kind of fault"),
        }
    }
}

async fn call(service: &S3Service, request: Request<Body>) -> Answer {
    service.call(request).await.map_err(|e| std::io::Error::other(format!("{e:?}")))
}

fn failure(status: u16) -> Response<Body> {
    let code = match status {
        403 => "AccessDenied",
        507 => "InsufficientStorage",
        _ => "InternalError",
    };
    let text = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>a fault of the lab</Message></Error>");
    let answer = Response::builder().status(status).header("content-type", "application/xml");
    answer.body(Body::from(text)).expect("an answer")
}

/// Says how long the answer is, and breaks it off after half of it.
async fn cut(answer: Response<Body>) -> Answer {
    let (mut parts, body) = answer.into_parts();
    let whole = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    let half = whole.slice(..whole.len() / 2);
    parts.headers.insert("content-length", whole.len().into());
    let pieces: [Result<Frame<Bytes>, std::io::Error>; 2] =
        [Ok(Frame::data(half)), Err(std::io::ErrorKind::BrokenPipe.into())];
    Ok(Response::from_parts(parts, Body::http_body_unsync(StreamBody::new(stream::iter(pieces)))))
}
