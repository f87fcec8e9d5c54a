//! The disk cache: blocks that survive a remount.
//!
//! Files, checksums, eviction and recovery are foyer's. Ours is what a block is known by, and when
//! it may be used:
//!
//! ```text
//! <store> <path> #      length and ETag of the object, as its first answer said, and the snapshot
//!                       that named it then
//! <store> <path> # <ETag> # <length> # <block> # <number>     one block
//! ```
//!
//! 1. Only objects that Lance owns are kept: they never change under their name while their table
//!    lives. Whether it is still that table is for the reader to find out, by the snapshot or by the
//!    tag (`cached`, difficulty 5). An object that is answered for with another tag all the same is
//!    forgotten ([`Disk::forget`]), and with its tag all its blocks.
//! 2. The cache must never fail a read: whatever goes wrong here is a miss. foyer drops what it
//!    cannot write, and does not give out what its checksum does not fit.
//! 3. Two mounts must not write the same files: the folder is locked, and who comes second is told.
//! 4. Others must neither read nor plant anything: the folder and its files are this user's alone
//!    (`private`), and foyer, which opens files by their paths, is given that of the folder's
//!    descriptor.

use std::fs::File;
use std::path::Path;

use bytes::Bytes;
use foyer::{
    BlockEngineConfig, DeviceBuilder as _, FsDeviceBuilder, HybridCache, HybridCacheBuilder,
    HybridCachePolicy, RecoverMode,
};
use rustix::fs::{FlockOperation, OFlags};

use super::fetch::Meta;
use crate::error::{Error, Kind, Result};
use crate::private::{Folder, proc};
use crate::units::{self, BlockNumber, ByteLen};

/// The file that is locked.
const LOCK: &str = "lock";
/// What the names of foyer's files begin with (`FsDevice::PREFIX`).
const FOYERS: &str = "foyer-";
/// foyer writes in files of this size, in bytes, and evicts one at a time.
const FILE: u64 = 16 << 20;
/// The smallest cache, in files: some are being written and some being emptied.
const FEWEST_FILES: u64 = 8;
/// What waits to be written, in bytes; what comes faster than the disk takes it is not kept.
const WRITING: usize = 32 << 20;
/// What foyer keeps in memory of what it has read; the block cache is above it, so next to nothing.
const MEMORY: usize = 1 << 20;

/// Blocks on disk.
pub struct Disk {
    cache: HybridCache<String, Bytes>,
    _lock: File,
    /// Beneath its descriptor foyer has opened its files.
    _folder: Folder,
}

impl Disk {
    /// Opens the cache in a folder of its own, made if need be, and recovers what it holds.
    ///
    /// # Errors
    /// [`Kind::Busy`] where another mount has it, [`Kind::Denied`] where it or something in it is
    /// another user's, [`Kind::Invalid`] where the folder cannot be used or `size` is too small.
    pub async fn open(folder: &Path, size: ByteLen) -> Result<Self> {
        let least = FILE * FEWEST_FILES;
        if size.get() < least {
            let text = format!("--cache-size is {size} bytes, and must be {least} at least");
            return Err(Error::new(Kind::Invalid, text));
        }
        let what = || format!("use the cache folder {}", folder.display());
        let home = home(folder)?;
        let lock = home.open(LOCK, OFlags::WRONLY | OFlags::CREATE)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            let text = format!(
                "the cache folder {} is used by another mount; give each mount its own --cache-dir",
                folder.display()
            );
            Error::new(Kind::Busy, text)
        })?;
        let failed = |e| Error::caused(Kind::Invalid, what(), e);
        files_are_ours(&home)?;
        let device = FsDeviceBuilder::new(proc(&home)).with_capacity(units::usize_of(size.get()));
        let device = device.build().map_err(failed)?;
        let engine = BlockEngineConfig::new(device)
            .with_block_size(units::usize_of(FILE))
            .with_buffer_pool_size(WRITING)
            .with_submit_queue_size_threshold(WRITING);
        let cache = HybridCacheBuilder::new()
            .with_name("lancefs")
            .with_policy(HybridCachePolicy::WriteOnInsertion)
            .memory(MEMORY)
            .with_weighter(|key: &String, value: &Bytes| key.len() + value.len())
            .storage()
            .with_engine_config(engine)
            .with_recover_mode(RecoverMode::Quiet)
            .build();
        let cache = cache.await.map_err(failed)?;
        // Those that foyer has made now follow the umask.
        files_are_ours(&home)?;
        Ok(Self { cache, _lock: lock, _folder: home })
    }

    /// What is known of an object of this name, and the snapshot that named it.
    pub async fn meta(&self, name: &str) -> Option<(Meta, String)> {
        let text = self.get(&meta_key(name)).await?;
        let mut lines = std::str::from_utf8(&text).ok()?.split('\n');
        let (length, tag, snapshot) = (lines.next()?, lines.next()?, lines.next()?);
        let meta = Meta { length: ByteLen::new(length.parse().ok()?), tag: Some(tag.into()) };
        Some((meta, snapshot.to_owned()))
    }

    /// Keeps what is known of an object that a snapshot names, if it has a tag to be known by.
    pub fn keep_meta(&self, name: &str, meta: &Meta, snapshot: &str) {
        if let Some(tag) = &meta.tag {
            let text = format!("{}\n{tag}\n{snapshot}", meta.length);
            self.put(meta_key(name), text.into());
        }
    }

    /// Forgets an object: its blocks are found again only by its tag.
    pub fn forget(&self, name: &str) {
        self.cache.remove(&meta_key(name));
    }

    /// A block.
    pub async fn block(&self, object: &Known<'_>, number: BlockNumber) -> Option<Bytes> {
        let bytes = self.get(&object.key(number)).await?;
        (units::u64_of(bytes.len()) == object.len_of(number)).then_some(bytes)
    }

    /// Keeps a block, if the disk is not behind already.
    pub fn keep(&self, object: &Known<'_>, number: BlockNumber, bytes: Bytes) {
        self.put(object.key(number), bytes);
    }

    /// Writes what is still in memory.
    pub async fn close(&self) {
        if let Err(error) = self.cache.close().await {
            tracing::warn!(%error, "the disk cache did not close");
        }
    }

    async fn get(&self, key: &String) -> Option<Bytes> {
        match self.cache.get(key).await {
            Ok(entry) => entry.map(|entry| entry.value().clone()),
            Err(error) => {
                tracing::debug!(%error, "the disk cache cannot be read");
                None
            }
        }
    }

    fn put(&self, key: String, value: Bytes) {
        self.cache.storage_writer(key).force().insert(value);
    }
}

/// The folder of a cache. One that is there and holds other things is not tightened: others may
/// have to reach those.
fn home(folder: &Path) -> Result<Folder> {
    if let Some(known) = Folder::find(folder)?.filter(Folder::was_wide) {
        let names = known.names()?;
        if !names.is_empty() && !names.iter().any(|name| name == LOCK) {
            let text = format!(
                "{} holds other things than a cache, and others may look into it",
                folder.display()
            );
            let remedy = "name a folder of its own as --cache-dir, or chmod 700 this one";
            return Err(Error::new(Kind::Invalid, text).hint(remedy));
        }
    }
    Folder::make(folder)
}

/// Makes sure that foyer's files are ours alone: it follows symlinks, and writes to what is there.
fn files_are_ours(home: &Folder) -> Result<()> {
    let names = home.names()?;
    let theirs = names.iter().filter(|name| name.starts_with(FOYERS));
    theirs.into_iter().try_for_each(|name| home.open(name, OFlags::RDONLY).map(drop))
}

/// An object whose length and tag are known.
pub struct Known<'a> {
    /// Its store and path.
    pub name: &'a str,
    /// Length and tag.
    pub meta: &'a Meta,
    /// The block size.
    pub block: ByteLen,
}

impl Known<'_> {
    fn key(&self, number: BlockNumber) -> String {
        let Meta { length, tag } = self.meta;
        let tag = tag.as_deref().unwrap_or_default();
        format!("{}#{tag}#{length}#{}#{number}", self.name, self.block)
    }

    fn len_of(&self, number: BlockNumber) -> u64 {
        let start = number.start(self.block).get();
        self.meta.length.get().saturating_sub(start).min(self.block.get())
    }
}

fn meta_key(name: &str) -> String {
    format!("{name}#")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "s3$b o";

    fn meta(tag: &'static str) -> Meta {
        Meta { length: ByteLen::new(40_000), tag: Some(tag.into()) }
    }

    fn known(meta: &Meta) -> Known<'_> {
        Known { name: NAME, meta, block: ByteLen::kib(16) }
    }

    async fn open(folder: &Path) -> Result<Disk> {
        Disk::open(folder, ByteLen::mib(128)).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn blocks_survive_and_are_of_one_object() {
        let folder = tempfile::tempdir().unwrap();
        let (here, other) = (meta("a"), meta("b"));
        let number = BlockNumber::new(1);
        let disk = open(folder.path()).await.unwrap();
        assert_eq!(disk.meta(NAME).await, None);
        disk.keep_meta(NAME, &Meta { tag: None, ..here.clone() }, "1@x");
        assert_eq!(disk.meta(NAME).await, None, "it may be any object of that length");
        disk.keep_meta(NAME, &here, "1@x");
        disk.keep(&known(&here), number, vec![7; 16 << 10].into());
        disk.keep(&known(&here), BlockNumber::new(2), vec![7; 100].into());
        disk.close().await;
        drop(disk);
        let disk = open(folder.path()).await.unwrap();
        assert_eq!(disk.meta(NAME).await, Some((here.clone(), "1@x".to_owned())));
        assert_eq!(disk.block(&known(&here), number).await.unwrap(), vec![7; 16 << 10]);
        assert_eq!(disk.block(&known(&other), number).await, None);
        assert_eq!(disk.block(&known(&here), BlockNumber::new(2)).await, None, "too short");
        disk.forget(NAME);
        assert_eq!(disk.meta(NAME).await, None);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn damage_is_a_miss() {
        let folder = tempfile::tempdir().unwrap();
        let here = meta("a");
        let disk = open(folder.path()).await.unwrap();
        for n in 0..2 {
            disk.keep(&known(&here), BlockNumber::new(n), vec![7; 16 << 10].into());
        }
        disk.close().await;
        drop(disk);
        let mut damaged = 0;
        for entry in std::fs::read_dir(folder.path()).unwrap().flatten() {
            let mut bytes = std::fs::read(entry.path()).unwrap();
            let sevens = bytes.windows(1000).position(|window| window == [7; 1000]);
            if let Some(at) = sevens {
                bytes[at + 500] = 8;
                std::fs::write(entry.path(), bytes).unwrap();
                damaged += 1;
            }
        }
        assert_eq!(damaged, 1);
        let disk = open(folder.path()).await.unwrap();
        assert_eq!(disk.block(&known(&here), BlockNumber::new(0)).await, None);
        assert_eq!(disk.block(&known(&here), BlockNumber::new(1)).await.unwrap()[0], 7);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_folder_has_one_mount() {
        let folder = tempfile::tempdir().unwrap();
        let _first = open(folder.path()).await.unwrap();
        assert_eq!(open(folder.path()).await.err().unwrap().kind(), Kind::Busy);
        let small = Disk::open(folder.path(), ByteLen::mib(1)).await;
        assert_eq!(small.err().unwrap().kind(), Kind::Invalid);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_folder_is_ours_alone_and_nothing_that_was_planted_is_written_to() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("cache");
        let victim = above.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        drop(open(&path).await.unwrap());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        let mut files: Vec<_> =
            std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(files.len() > 8 && files.iter().all(|file| mode(file) == 0o600), "{files:?}");
        for planted in [&files[0], files.last().unwrap()] {
            std::fs::remove_file(planted).unwrap();
            symlink(&victim, planted).unwrap();
            let refused = open(&path).await.err().unwrap();
            assert_eq!(refused.kind(), Kind::Denied, "{refused}");
            assert!(refused.chain().contains(planted.to_str().unwrap()), "{refused}");
            std::fs::remove_file(planted).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        drop(open(&path).await.unwrap());
        // A folder that is not for the cache alone keeps its mode.
        std::fs::set_permissions(above.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let refused = open(above.path()).await.err().unwrap();
        assert!(refused.chain().contains("holds other things than a cache"), "{refused}");
        assert_eq!(mode(above.path()), 0o755);
    }
}
