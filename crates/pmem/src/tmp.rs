#![allow(
    missing_docs,
    unsafe_code,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediumKind {
    Dax,
    Ram,
    Cached,
    Other,
}
pub fn kind_of_fd(fd: i32) -> MediumKind {
    match rustix::fs::fstatfs(unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) })
        .map(|s| s.f_type as u64)
    {
        Ok(0x01021994) => MediumKind::Ram,
        Ok(0xef53 | 0x58465342 | 0x9123683e) => MediumKind::Cached,
        _ => MediumKind::Other,
    }
}
