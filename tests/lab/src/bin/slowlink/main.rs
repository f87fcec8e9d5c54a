//! A TCP proxy that makes a server on loopback look far away, and fails when told to.
//!
//! ```text
//! slowlink --to 127.0.0.1:9005 [--listen 127.0.0.1:0] [--latency-ms 30] [--connect-ms 30]
//!          [--rate-mb 100] [--total-mb 1000] [--stats FILE] [--fault FILE]
//! ```
//!
//! 1. Every request sees its first byte later by `latency-ms`; a new connection costs `connect-ms`
//!    once, as handshakes do.
//! 2. Answers are paced to `rate-mb` MB/s (of 10^6 bytes) for each connection, and to `total-mb` for
//!    all together; 0 is without limit.
//! 3. `--stats` is written every 100 ms: connections, requests and bytes as JSON. Requests are
//!    counted from the first bytes of what a client sends, which is right for plain HTTP/1.1 without
//!    pipelining.
//! 4. `--fault` names a file that says how the link is just now: `ok` or nothing, `hang` (nothing
//!    moves), `reset` (connections are closed), `503` (every request is answered so), `trickle`
//!    (a KiB a second), `cut` (an answer is broken off after 10,000 bytes).

mod carry;
mod pace;
mod state;

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use state::{Link, Shared};

fn main() {
    let (mut listen, mut to) = ("127.0.0.1:0".to_owned(), String::new());
    let (mut latency, mut connect) = (0, None);
    let (mut rate, mut total) = (0.0, 0.0);
    let (mut stats, mut fault) = (None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| usage(&name));
        match name.as_str() {
            "--listen" => listen = value(),
            "--to" => to = value(),
            "--latency-ms" => latency = value().parse().unwrap_or_else(|_| usage(&name)),
            "--connect-ms" => connect = Some(value().parse().unwrap_or_else(|_| usage(&name))),
            "--rate-mb" => rate = value().parse().unwrap_or_else(|_| usage(&name)),
            "--total-mb" => total = value().parse().unwrap_or_else(|_| usage(&name)),
            "--stats" => stats = Some(PathBuf::from(value())),
            "--fault" => fault = Some(PathBuf::from(value())),
            _ => usage(&name),
        }
    }
    let link = Link {
        to,
        latency: Duration::from_millis(latency),
        connect: Duration::from_millis(connect.unwrap_or(latency)),
        rate,
        fault,
    };
    let shared = Arc::new(Shared::new(link, total));
    if let Some(file) = stats {
        let shared = shared.clone();
        std::thread::spawn(move || shared.figures.write_for_ever(&file));
    }
    let listener = TcpListener::bind(&listen).expect("LISTEN is free");
    println!("listening on http://{}", listener.local_addr().expect("an address"));
    for client in listener.incoming().flatten() {
        let shared = shared.clone();
        std::thread::spawn(move || carry::connection(client, &shared));
    }
}

fn usage(name: &str) -> ! {
    eprintln!("slowlink: {name}: not known, or without a good value; see src/bin/slowlink/main.rs");
    std::process::exit(2);
}
