//! An S3 server on loopback, for tests and benchmarks:
//! `s3dev [--faults FILE] LISTEN FOLDER [ACCESS_KEY SECRET_KEY]`. Buckets are folders, objects are files. Port 0 picks a port; the address is printed.
//!
//! It stands on the `s3s-fs` library, and changes what Lance and a benchmark cannot live with there:
//!
//! 1. A conditional PUT must be atomic, or commits are lost without an error: one lock for each key
//!    ([`objects::Objects::lock`]).
//! 2. GET serves a range as one piece of a memory map; the library reads 4 KiB at a time. GET and
//!    HEAD honour `If-Match`; a folder is no object.
//! 3. A listing walks only what its prefix covers, has `ETag`s, and is paged from one state
//!    ([`listing`]).
//!
//! And it fails where it is told to ([`faults`]).

mod faults;
mod listing;
mod objects;
mod service;

use std::sync::Arc;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tokio::net::TcpListener;

/// Room for the head of a request and for pieces of answers, in bytes.
const BUFFER: usize = 1 << 20;

#[tokio::main]
async fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let has_faults = arguments.first().is_some_and(|flag| flag == "--faults") && arguments.len() > 1;
    let faults = has_faults.then(|| arguments.drain(..2).nth(1).expect("a file").into());
    let faults = Arc::new(faults::Faults::new(faults));
    let (listen, folder, keys) = match arguments.as_slice() {
        [listen, folder] => (listen, folder, None),
        [listen, folder, access, secret] => (listen, folder, Some((access, secret))),
        _ => {
            eprintln!("usage: s3dev [--faults FILE] LISTEN FOLDER [ACCESS_KEY SECRET_KEY]");
            std::process::exit(2);
        }
    };
    let folder = std::fs::canonicalize(folder).expect("FOLDER is there");
    let mut builder = S3ServiceBuilder::new(service::Service::new(folder));
    if let Some((access, secret)) = keys {
        builder.set_auth(SimpleAuth::from_single(access, secret.as_str()));
    }
    let service = builder.build();
    let listener = TcpListener::bind(listen).await.expect("LISTEN is free");
    println!("listening on http://{}", listener.local_addr().expect("an address"));
    let mut http = Builder::new(TokioExecutor::new());
    http.http1().max_buf_size(BUFFER);
    let http = Arc::new(http);
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let (service, faults, http) = (service.clone(), faults.clone(), http.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let (service, faults) = (service.clone(), faults.clone());
                async move { faults.serve(&service, request).await }
            });
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
