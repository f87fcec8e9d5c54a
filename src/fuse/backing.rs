//! Kernel passthrough: reads of a value that is a whole local file do not come here at all.
//!
//! 1. The kernel may not allow it: it is older than 6.9, or we are not root. Then every file is read
//!    the other way, without a word ([`Backings::of`]).
//! 2. All opens of one inode must name the same backing file, and it must live as long as any of
//!    them: one registration for each inode, held by every handle that uses it.
//! 3. A file opened with `O_DIRECT` would have to be read as its backing file demands, at aligned
//!    offsets. Direct I/O goes before passthrough (Linux, `fs/fuse/file.c`), so with both flags it
//!    is opened as the others are, and its reads come here.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use fuser::{BackingId, InitFlags, KernelConfig, ReplyOpen};

use crate::fs::Handle;
use crate::units::Ino;

/// The backing files of one mount.
#[derive(Debug)]
pub struct Backings {
    wanted: Passthrough,
    allowed: AtomicBool,
    registered: Mutex<Registered>,
}

#[derive(Debug, Default)]
struct Registered {
    of_ino: HashMap<Ino, Weak<BackingId>>,
    of_handle: HashMap<Handle, (Ino, Arc<BackingId>)>,
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
    pub fn new(wanted: Passthrough) -> Self {
        Self { wanted, allowed: AtomicBool::new(false), registered: Mutex::default() }
    }

    /// Asks the kernel for passthrough.
    pub fn negotiate(&self, config: &mut KernelConfig) {
        // A stack of one: the backing file is on a file system that is on none other.
        let offered = self.wanted == Passthrough::Wanted
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok();
        self.allowed.store(offered, Ordering::Relaxed);
    }

    /// The backing of a file that is being opened; `None` where the kernel refuses, and then for
    /// every later file.
    pub fn of(
        &self,
        ino: Ino,
        handle: Handle,
        file: &OwnedFd,
        reply: &ReplyOpen,
    ) -> Option<Arc<BackingId>> {
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        let known = registered.of_ino.get(&ino).and_then(Weak::upgrade);
        if known.is_none() && !self.allowed.load(Ordering::Relaxed) {
            return None;
        }
        let backing = match known.map_or_else(|| reply.open_backing(file).map(Arc::new), Ok) {
            Ok(backing) => backing,
            Err(error) => {
                tracing::debug!(%error, "no passthrough");
                self.allowed.store(false, Ordering::Relaxed);
                return None;
            }
        };
        registered.of_ino.insert(ino, Arc::downgrade(&backing));
        registered.of_handle.insert(handle, (ino, backing.clone()));
        Some(backing)
    }

    /// Forgets a handle, and the inode with the last of its handles.
    pub fn release(&self, handle: Handle) {
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((ino, backing)) = registered.of_handle.remove(&handle) else { return };
        drop(backing);
        if registered.of_ino.get(&ino).is_some_and(|backing| backing.strong_count() == 0) {
            registered.of_ino.remove(&ino);
        }
    }
}
