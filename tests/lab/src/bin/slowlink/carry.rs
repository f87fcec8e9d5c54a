//! One connection: requests go up delayed, answers come down paced.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::pipe::SpliceFlags;

use super::pace::{self, Pace};
use super::state::{Fault, Shared};

/// Pieces of requests that wait for their time.
const WAITING: usize = 4096;
/// What goes down at once, in bytes.
const PIECE: usize = 256 << 10;
/// How often a hanging link is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// What a broken off answer has, in bytes.
const CUT: usize = 10_000;
/// A trickle, in MB/s.
const TRICKLE: f64 = 0.001;

const UNAVAILABLE: &[u8] =
    b"HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

pub fn connection(client: TcpStream, shared: &Arc<Shared>) {
    shared.figures.connections.fetch_add(1, Ordering::Relaxed);
    thread::sleep(shared.link.connect);
    while shared.fault() == Fault::Hang {
        thread::sleep(LOOK);
    }
    if shared.fault() == Fault::Reset {
        return;
    }
    let Ok(server) = TcpStream::connect(&shared.link.to) else { return };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (Ok(client_2), Ok(server_2)) = (client.try_clone(), server.try_clone()) else { return };
    let up = shared.clone();
    let requests = thread::spawn(move || go_up(client_2, server_2, &up));
    come_down(&server, &client, shared);
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
    let _ = requests.join();
}

fn go_up(mut client: TcpStream, mut server: TcpStream, shared: &Arc<Shared>) {
    let (delayed, due) = mpsc::sync_channel::<(Instant, Vec<u8>)>(WAITING);
    let writer = thread::spawn(move || {
        for (time, piece) in due {
            pace::until(time);
            if server.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = server.shutdown(Shutdown::Write);
    });
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = client.read(&mut buffer) {
        let piece = &buffer[..read];
        let is_request = shared.figures.count(piece);
        shared.figures.up.fetch_add(read as u64, Ordering::Relaxed);
        while shared.fault() == Fault::Hang {
            thread::sleep(LOOK);
        }
        match shared.fault() {
            Fault::Reset => break,
            Fault::Unavailable if is_request => {
                thread::sleep(shared.link.latency);
                let _ = client.write_all(UNAVAILABLE);
                break;
            }
            _ => {}
        }
        if delayed.send((Instant::now() + shared.link.latency, piece.to_vec())).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    drop(delayed);
    let _ = writer.join();
}

fn come_down(server: &TcpStream, client: &TcpStream, shared: &Shared) {
    let mut paces = Paces::new(shared);
    if shared.link.fault.is_some() || flow_down(server, client, shared, &mut paces).is_err() {
        copy_down(server, client, shared, &mut paces);
    }
}

/// Passes answers on within the kernel, so that the link takes little of the machine that it is
/// measured on. Fails where the kernel has no pipe left.
fn flow_down(
    server: &TcpStream,
    client: &TcpStream,
    shared: &Shared,
    paces: &mut Paces<'_>,
) -> rustix::io::Result<()> {
    let (out, into) = rustix::pipe::pipe()?;
    // Without leave for a larger one, the usual size does.
    let _ = rustix::pipe::fcntl_setpipe_size(&into, 4 * PIECE);
    let splice = |from: BorrowedFd<'_>, to: BorrowedFd<'_>, len| {
        rustix::pipe::splice(from, None, to, None, len, SpliceFlags::MOVE)
    };
    while let Ok(read @ 1..) = splice(server.as_fd(), into.as_fd(), PIECE) {
        paces.wait(read);
        let mut left = read;
        while left > 0 {
            let Ok(sent @ 1..) = splice(out.as_fd(), client.as_fd(), left) else { return Ok(()) };
            left -= sent;
        }
        shared.figures.down.fetch_add(read as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Passes answers on in pieces that can be held back, thinned and cut.
fn copy_down(
    mut server: &TcpStream,
    mut client: &TcpStream,
    shared: &Shared,
    paces: &mut Paces<'_>,
) {
    let mut buffer = vec![0; PIECE];
    while let Ok(read @ 1..) = server.read(&mut buffer) {
        while shared.fault() == Fault::Hang {
            thread::sleep(LOOK);
        }
        let mut piece = &buffer[..read];
        match shared.fault() {
            Fault::Reset => return,
            Fault::Trickle if !trickle(&mut piece, client, shared) => return,
            Fault::Cut if piece.len() > CUT => {
                let _ = client.write_all(&piece[..CUT]);
                return;
            }
            _ => {}
        }
        paces.wait(piece.len());
        if client.write_all(piece).is_err() {
            return;
        }
        shared.figures.down.fetch_add(piece.len() as u64, Ordering::Relaxed);
    }
}

/// The rates that a connection keeps: its own, and that of all together.
struct Paces<'a> {
    own: Option<Pace>,
    shared: &'a Shared,
}

impl<'a> Paces<'a> {
    fn new(shared: &'a Shared) -> Self {
        let own = (shared.link.rate > 0.0).then(|| Pace::new(shared.link.rate));
        Self { own, shared }
    }

    /// Waits until so many bytes may go.
    fn wait(&mut self, bytes: usize) {
        if let Some(pace) = &mut self.own {
            pace::until(pace.reserve(bytes));
        }
        if let Some(total) = &self.shared.total {
            let time = total.lock().unwrap().reserve(bytes);
            pace::until(time);
        }
    }
}

/// Sends a little at a time while the fault lasts; leaves the rest in `piece`.
fn trickle(piece: &mut &[u8], mut client: &TcpStream, shared: &Shared) -> bool {
    let mut pace = Pace::new(TRICKLE);
    while !piece.is_empty() && shared.fault() == Fault::Trickle {
        let (now, later) = piece.split_at(piece.len().min(100));
        pace::until(pace.reserve(now.len()));
        if client.write_all(now).is_err() {
            return false;
        }
        shared.figures.down.fetch_add(now.len() as u64, Ordering::Relaxed);
        *piece = later;
    }
    true
}
