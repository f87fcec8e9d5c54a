//! What we and a worker say to each other: messages, each after its length.
//!
//! Both are the same program, so the messages may change with it.

use std::io;
use std::os::unix::net::UnixStream as StdStream;

use bytes::Bytes;
use prost::{Message, Oneof};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::units;

/// Rows to decode.
#[derive(Clone, PartialEq, Message)]
pub struct Scan {
    /// Tells it from other scans.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Where the rows are.
    #[prost(message, tag = "2")]
    pub place: Option<Place>,
    /// The fragment, as the format writes one.
    #[prost(bytes = "bytes", tag = "3")]
    pub fragment: Bytes,
    /// The fields to read, with those around them.
    #[prost(int32, repeated, tag = "4")]
    pub fields: Vec<i32>,
    /// The first row, among the fragment's live rows.
    #[prost(uint64, tag = "5")]
    pub offset: u64,
    /// How many rows.
    #[prost(uint64, tag = "6")]
    pub rows: u64,
    /// What they may weigh together, in bytes: fewer come where they weigh more.
    #[prost(uint64, tag = "7")]
    pub most: u64,
}

/// A version without its fragments.
#[derive(Clone, PartialEq, Message)]
pub struct Place {
    /// What is cached of files is good within one.
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// The table, as caches name it.
    #[prost(string, tag = "2")]
    pub uri: String,
    /// Its folder.
    #[prost(string, tag = "3")]
    pub root: String,
    /// Its manifest, which holds dictionaries of old formats.
    #[prost(string, tag = "4")]
    pub manifest: String,
    /// Its manifest without fragments, as the format writes one.
    #[prost(bytes = "bytes", tag = "5")]
    pub header: Bytes,
    /// The blocks that its store is read in, in bytes.
    #[prost(uint64, tag = "6")]
    pub block: u64,
}

/// Bytes of a file that a scan needs.
#[derive(Clone, PartialEq, Message)]
pub struct Read {
    /// Tells it from other reads.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// For which scan.
    #[prost(uint64, tag = "2")]
    pub scan: u64,
    /// The base that the file is in; none is the table itself.
    #[prost(uint32, optional, tag = "3")]
    pub base: Option<u32>,
    /// The file.
    #[prost(string, tag = "4")]
    pub path: String,
    /// Nothing but how long it is.
    #[prost(bool, tag = "5")]
    pub head: bool,
    /// From here on; with neither this nor `last`, all of it.
    #[prost(uint64, optional, tag = "6")]
    pub start: Option<u64>,
    /// Up to here.
    #[prost(uint64, optional, tag = "7")]
    pub end: Option<u64>,
    /// So many at its end.
    #[prost(uint64, optional, tag = "8")]
    pub last: Option<u64>,
}

/// What came of a read.
#[derive(Clone, PartialEq, Message)]
pub struct Answer {
    /// Of which.
    #[prost(uint64, tag = "1")]
    pub read: u64,
    /// How long the file is.
    #[prost(uint64, tag = "2")]
    pub size: u64,
    /// Where the bytes start in it.
    #[prost(uint64, tag = "3")]
    pub start: u64,
    /// The bytes.
    #[prost(bytes = "bytes", tag = "4")]
    pub bytes: Bytes,
    /// Why there are none.
    #[prost(message, tag = "5")]
    pub failure: Option<Failure>,
}

/// Why a read failed, as far as the crate tells failures apart.
#[derive(Clone, PartialEq, Message)]
pub struct Failure {
    /// There is no such file.
    #[prost(bool, tag = "1")]
    pub is_missing: bool,
    /// It failed after it had begun.
    #[prost(bool, tag = "2")]
    pub is_broken_off: bool,
    /// For people.
    #[prost(string, tag = "3")]
    pub text: String,
}

/// What came of a scan.
#[derive(Clone, PartialEq, Message)]
pub struct Done {
    /// Of which.
    #[prost(uint64, tag = "1")]
    pub scan: u64,
    /// One batch, as an Arrow IPC stream.
    #[prost(bytes = "bytes", tag = "2")]
    pub batch: Bytes,
    /// Why there is none.
    #[prost(string, optional, tag = "3")]
    pub failure: Option<String>,
}

/// What a worker is told.
#[derive(Clone, PartialEq, Message)]
pub struct Told {
    /// Which it is.
    #[prost(oneof = "Ask", tags = "1, 2")]
    pub ask: Option<Ask>,
}

/// See [`Told`].
#[derive(Clone, PartialEq, Oneof)]
pub enum Ask {
    /// Something to do.
    #[prost(message, tag = "1")]
    Scan(Scan),
    /// Something that it asked for.
    #[prost(message, tag = "2")]
    Answer(Answer),
}

/// What a worker says.
#[derive(Clone, PartialEq, Message)]
pub struct Said {
    /// Which it is.
    #[prost(oneof = "Reply", tags = "1, 2")]
    pub reply: Option<Reply>,
}

/// See [`Said`].
#[derive(Clone, PartialEq, Oneof)]
pub enum Reply {
    /// Something that it needs.
    #[prost(message, tag = "1")]
    Read(Read),
    /// Something that it has done.
    #[prost(message, tag = "2")]
    Done(Done),
}

/// Sends a message.
///
/// # Errors
/// Where the other one has ended.
pub async fn send(
    socket: &mut (impl AsyncWrite + Unpin),
    message: &impl Message,
) -> io::Result<()> {
    let bytes = message.encode_to_vec();
    socket.write_u64_le(units::u64_of(bytes.len())).await?;
    socket.write_all(&bytes).await
}

/// A connection that a runtime waits for.
///
/// # Errors
/// Where the runtime cannot.
pub fn socket(socket: StdStream) -> io::Result<UnixStream> {
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

/// Sends messages as they come, until there are no more senders or the other one has ended.
pub async fn pass_on(mut messages: UnboundedReceiver<impl Message>, mut socket: OwnedWriteHalf) {
    while let Some(message) = messages.recv().await {
        if send(&mut socket, &message).await.is_err() {
            return;
        }
    }
}

/// Receives a message of at most so many bytes; none where the other one has ended.
///
/// # Errors
/// Where it ended within one, or what came is none.
pub async fn receive<M: Message + Default>(
    socket: &mut (impl AsyncRead + Unpin),
    longest: u64,
) -> io::Result<Option<M>> {
    let length = match socket.read_u64_le().await {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    if length > longest {
        return Err(io::Error::other(format!("a message of {length} bytes, over {longest}")));
    }
    let mut bytes = Vec::with_capacity(units::usize_of(length));
    socket.take(length).read_to_end(&mut bytes).await?;
    M::decode(Bytes::from(bytes)).map(Some).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_sent_is_received_until_the_other_end_is_gone() {
        let (mut ours, mut theirs) = tokio::io::duplex(16);
        let answer =
            Answer { read: 7, size: 9, start: 2, bytes: vec![1; 100].into(), failure: None };
        let told = Told { ask: Some(Ask::Answer(answer)) };
        let sent = told.clone();
        let sending = tokio::spawn(async move { send(&mut ours, &sent).await });
        assert_eq!(receive::<Told>(&mut theirs, 1000).await.unwrap(), Some(told));
        sending.await.unwrap().unwrap();
        assert_eq!(receive::<Told>(&mut theirs, 1000).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_message_that_is_too_long_or_cut_off_is_an_error() {
        let (mut ours, mut theirs) = tokio::io::duplex(1000);
        send(&mut ours, &Failure { text: "x".repeat(100), ..Failure::default() }).await.unwrap();
        assert!(receive::<Failure>(&mut theirs, 99).await.is_err());
        let (mut ours, mut theirs) = tokio::io::duplex(1000);
        ours.write_u64_le(10).await.unwrap();
        ours.write_all(&[0x1a, 8, b'x']).await.unwrap();
        drop(ours);
        assert!(receive::<Failure>(&mut theirs, 99).await.is_err());
    }
}
