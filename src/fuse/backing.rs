//! Kernel passthrough: reads of a value that is a whole local file do not come here at all.
//!
//! 1. The kernel may not allow it: it is older than 6.9, or we are not root. Then every file is read
//!    the other way, without a word ([`Backings::of`]).
//! 2. All opens of one inode must name the same backing file, and it must live as long as any of
//!    them: one registration for each inode, held by every handle that uses it. While a file is open
//!    the other way, nobody else opens it for passthrough.
//! 3. A file opened with `O_DIRECT` would have to be read as its backing file demands, at aligned
//!    offsets. Direct I/O goes before passthrough (Linux, `fs/fuse/file.c`), so with both flags it
//!    is opened as the others are, and its reads come here.
//! 4. What the kernel reads by itself ends where the file ends: of an object that is cut, that would
//!    be a short success. So a [`Lease`] is held on each file that the kernel reads, and whoever
//!    opens it for writing or cuts it waits until its inode is a bad one, on which reads fail
//!    ([`Backings::end`]). Where there is no lease to be had, reads come here and are counted. Two ways
//!    lead past it: `sendfile` and `splice` do not look at the inode (Linux, `fs/fuse/passthrough.c`),
//!    so that who uses them is told by `fstat` or `close` alone; and when this process has died, the
//!    kernel reads on and nobody holds a lease.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fuser::{BackingId, InitFlags, KernelConfig, ReplyOpen};
use rustix::fs::{Mode, OFlags};
use tokio::runtime::Handle as Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep, timeout_at};

use super::lease::Lease;
use crate::error::{Error, Kind};
use crate::fs::{Fs, Handle, Whole};
use crate::units::Ino;

/// How long the kernel is tried to be told that an inode is over. Who waits for the lease waits as
/// long; the kernel would wait 45 s.
const TELLING: Duration = Duration::from_secs(10);
/// How long until it is tried again.
const AGAIN: Duration = Duration::from_millis(50);

/// The backing files of one mount.
#[derive(Debug)]
pub struct Backings {
    wanted: Passthrough,
    mountpoint: PathBuf,
    allowed: AtomicBool,
    registered: Mutex<Registered>,
}

#[derive(Debug, Default)]
struct Registered {
    of_ino: HashMap<Ino, Weak<Backing>>,
    of_handle: HashMap<Handle, (Ino, Option<Arc<Backing>>)>,
    /// The handles of inodes whose reads come here.
    plain: HashMap<Ino, HashSet<Handle>>,
}

/// A file that the kernel reads by itself.
#[derive(Debug)]
pub struct Backing {
    /// What the kernel knows it by.
    pub id: BackingId,
    ino: Ino,
    lease: Lease,
    is_ending: AtomicBool,
}

/// Whether passthrough is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passthrough {
    /// Where the kernel allows it.
    Wanted,
    /// Never.
    Off,
}

impl Backings {
    /// No file yet.
    pub fn new(wanted: Passthrough, mountpoint: PathBuf) -> Self {
        let (allowed, registered) = Default::default();
        Self { wanted, mountpoint, allowed, registered }
    }

    /// Asks the kernel for passthrough, and listens for leases that break.
    pub fn negotiate(self: &Arc<Self>, config: &mut KernelConfig, fs: &Arc<Fs>, runtime: &Runtime) {
        if self.wanted == Passthrough::Off {
            return;
        }
        let _in_runtime = runtime.enter();
        // Before the first lease: the signal ends a process that does not listen.
        let told = signal(SignalKind::io());
        // A stack of one: the backing file is on a file system that is on none other.
        let offered = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok();
        match told {
            Ok(told) if offered => {
                runtime.spawn(self.clone().attend(fs.clone(), told));
                self.allowed.store(true, Ordering::Relaxed);
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "no passthrough: cannot listen for signals"),
        }
    }

    /// The backing of a file that is being opened; `None` where its reads come here. Where the kernel
    /// refuses, that is so for every later file.
    pub fn of(
        &self,
        ino: Ino,
        handle: Handle,
        whole: &Whole,
        reply: &ReplyOpen,
    ) -> Option<Arc<Backing>> {
        let mut registered = self.lock();
        let known = registered.of_ino.get(&ino).and_then(Weak::upgrade);
        if known.is_none() && !self.allowed.load(Ordering::Relaxed) {
            return None;
        }
        let is_plain = registered.plain.contains_key(&ino);
        let backing = known.or_else(|| {
            if is_plain { None } else { self.register(ino, whole, reply).map(Arc::new) }
        });
        match &backing {
            Some(backing) => {
                registered.of_ino.insert(ino, Arc::downgrade(backing));
            }
            None => {
                registered.plain.entry(ino).or_default().insert(handle);
            }
        }
        registered.of_handle.insert(handle, (ino, backing.clone()));
        backing
    }

    /// Forgets a handle, and the inode with the last of its handles.
    pub fn release(&self, handle: Handle) {
        let mut registered = self.lock();
        let Some((ino, backing)) = registered.of_handle.remove(&handle) else { return };
        if let Some(backing) = backing {
            drop(backing);
            if registered.of_ino.get(&ino).is_some_and(|backing| backing.strong_count() == 0) {
                registered.of_ino.remove(&ino);
            }
        } else if let Some(plain) = registered.plain.get_mut(&ino) {
            plain.remove(&handle);
            if plain.is_empty() {
                registered.plain.remove(&ino);
            }
        }
    }

    fn register(&self, ino: Ino, whole: &Whole, reply: &ReplyOpen) -> Option<Backing> {
        let lease = Lease::take(&whole.file);
        let lease = lease.inspect_err(|error| tracing::debug!(%ino, %error, "no lease")).ok()?;
        // Looked at again: from here on nobody can cut it unnoticed.
        let length = rustix::fs::fstat(&whole.file).ok()?.st_size;
        if u64::try_from(length).ok()? != whole.len.get() {
            return None;
        }
        match reply.open_backing(&*whole.file) {
            Ok(id) => Some(Backing { id, ino, lease, is_ending: AtomicBool::new(false) }),
            Err(error) => {
                tracing::debug!(%error, "no passthrough");
                self.allowed.store(false, Ordering::Relaxed);
                None
            }
        }
    }

    /// Ends what is being written to, whenever the kernel says that something is.
    async fn attend(self: Arc<Self>, fs: Arc<Fs>, mut told: Signal) {
        while told.recv().await.is_some() {
            for backing in self.breaking() {
                tokio::spawn(self.clone().end(fs.clone(), backing));
            }
        }
    }

    /// Those whose lease somebody waits for. Signals are not counted, so all are looked at.
    fn breaking(&self) -> Vec<Arc<Backing>> {
        let open: Vec<_> = self.lock().of_ino.values().filter_map(Weak::upgrade).collect();
        let is_new = |backing: &Arc<Backing>| {
            backing.lease.is_breaking() && !backing.is_ending.swap(true, Ordering::Relaxed)
        };
        open.into_iter().filter(is_new).collect()
    }

    /// Makes the inode of a file bad, and then gives the lease up.
    async fn end(self: Arc<Self>, fs: Arc<Fs>, backing: Arc<Backing>) {
        let ino = backing.ino;
        let text =
            "its object is being cut or written to: files that are open on it fail from here on";
        fs.failed("passthrough", ino, &Error::new(Kind::Payload, text));
        {
            // Who opens the name from now on opens another inode.
            let mut registered = self.lock();
            registered.of_ino.remove(&ino);
            registered.plain.remove(&ino);
        }
        let name = self.mountpoint.join(fs.renew(ino));
        let deadline = Instant::now() + TELLING;
        // Nobody has it open any more where it is ours alone.
        while fs.is_renewing(ino) && Arc::strong_count(&backing) > 1 {
            let name = name.clone();
            // A lookup and nothing else; on a thread of its own, because the mount may hang.
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let look = move || rustix::fs::open(name, flags, Mode::empty()).map(drop);
            if timeout_at(deadline, tokio::task::spawn_blocking(look)).await.is_err() {
                tracing::error!(%ino, "the kernel was not told in time that an object is being cut");
                break;
            }
            if fs.is_renewing(ino) {
                sleep(AGAIN).await;
            }
        }
        backing.lease.give_up();
    }

    fn lock(&self) -> MutexGuard<'_, Registered> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
