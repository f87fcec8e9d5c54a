//! The kernel adapter: converts, replies, and nothing else.
//!
//! Difficulties, and what answers each:
//!
//! 1. The threads that read `/dev/fuse` must never wait for the network, or the mount wedges; most
//!    operations need no network at all: [`Answering`] polls each operation once, and only if it is
//!    not ready moves it to the runtime, with its deadline.
//! 2. Every request must be answered, also when something panics: a reply that is dropped is EIO
//!    (fuser), and a panic at the first poll is caught.
//! 3. An error has one errno, whatever it was met by: [`errno`].
//! 4. A value that is a whole local file need not come here at all: [`backing`] hands it to the kernel,
//!    and [`lease`] says when the file is about to be another one.
//! 5. Mounting differs for root and for others: [`mount`].
//! 6. A commit may take longer than a program may be held in the kernel: [`waiting`].

mod adapter;
mod answering;
mod backing;
pub mod device;
pub mod errno;
mod lease;
pub mod mount;
mod waiting;

pub use adapter::Adapter;
pub use answering::Answering;
pub use backing::Passthrough;
