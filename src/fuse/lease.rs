//! Read leases (fcntl(2)): whoever opens a file for writing or cuts it waits in the kernel until the
//! holder of a lease on it has given it up, and the holder is told by SIGIO.
//!
//! 1. The kernel waits as long as `/proc/sys/fs/lease-break-time` says, 45 s by default, and no longer.
//! 2. To remove or rename a file is not to write to it: no lease breaks.
//! 3. SIGIO ends a process that does not handle it: whoever takes a lease has to.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags};

/// A read lease on a file; dropping it gives it up.
#[derive(Debug)]
pub struct Lease(OwnedFd);

impl Lease {
    /// Takes a lease on an open file.
    ///
    /// # Errors
    /// `EAGAIN` where somebody has it open for writing, `EACCES` where it is another user's and we
    /// may not, `EINVAL` and others where its file system has no leases.
    pub fn take(file: &OwnedFd) -> io::Result<Self> {
        // Opened anew: a lease belongs to what one `open` made, and the kernel keeps what `file` is
        // for as long as it reads by itself, also when this process has died without a word.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        let lease = Self(rustix::fs::open(name, flags, Mode::empty())?);
        lease.control(libc::F_SETLEASE, libc::F_RDLCK)?;
        Ok(lease)
    }

    /// Whether somebody waits for it to be given up, or it was taken away.
    pub fn is_breaking(&self) -> bool {
        !matches!(self.control(libc::F_GETLEASE, 0), Ok(libc::F_RDLCK))
    }

    /// Gives it up: who waits goes on.
    pub fn give_up(&self) {
        // It fails where the kernel has taken it away already.
        let _ = self.control(libc::F_SETLEASE, libc::F_UNLCK);
    }

    #[expect(
        unsafe_code,
        reason = "neither rustix 1.1 nor nix 0.31 has leases; both commands take a plain number and touch no memory of ours"
    )]
    fn control(&self, command: libc::c_int, argument: libc::c_int) -> io::Result<libc::c_int> {
        // SAFETY: the descriptor is open for as long as `self` lives, and no pointer is passed.
        let done = unsafe { libc::fcntl(self.0.as_raw_fd(), command, argument) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn who_writes_waits_until_the_lease_is_given_up() {
        let mut told = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::io()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("o"), folder.path().join("p"));
        fs::write(&path, [7; 1000]).unwrap();
        let file: OwnedFd = File::open(&path).unwrap().into();
        let lease = Lease::take(&file).unwrap();
        fs::rename(&path, &moved).unwrap();
        assert!(!lease.is_breaking(), "a new name is no write");
        let cut = tokio::task::spawn_blocking(move || {
            File::options().write(true).open(&moved).unwrap().set_len(10).unwrap();
        });
        while !lease.is_breaking() {
            let _ = tokio::time::timeout(Duration::from_millis(50), told.recv()).await;
        }
        assert!(!cut.is_finished());
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 1000);
        lease.give_up();
        cut.await.unwrap();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 10);
    }

    #[test]
    fn what_is_open_for_writing_gives_no_lease() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("o");
        let writer = File::create(&path).unwrap();
        let file: OwnedFd = File::open(&path).unwrap().into();
        assert_eq!(Lease::take(&file).unwrap_err().raw_os_error(), Some(libc::EAGAIN));
        drop(writer);
        Lease::take(&file).unwrap();
    }
}
