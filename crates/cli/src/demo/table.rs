//! The cases: real programs, each driven by a small script.

/// One case.
pub(crate) struct Case {
    /// Its name.
    pub(crate) name: &'static str,
    /// The programs it needs.
    pub(crate) needs: &'static [&'static str],
    /// What bash runs. It must print and leave the same whenever it runs.
    pub(crate) script: &'static str,
    /// The script's argument.
    pub(crate) argument: &'static str,
}

const fn case(
    name: &'static str,
    needs: &'static [&'static str],
    script: &'static str,
    argument: &'static str,
) -> Case {
    Case {
        name,
        needs,
        script,
        argument,
    }
}

/// All of them.
pub(crate) const CASES: [Case; 11] = [
    case(
        "sqlite, rollback journal",
        &["sqlite3"],
        include_str!("cases/sqlite.sh"),
        "delete",
    ),
    case(
        "sqlite, write-ahead log",
        &["sqlite3"],
        include_str!("cases/sqlite.sh"),
        "wal",
    ),
    case("git", &["git"], include_str!("cases/git.sh"), ""),
    case(
        "tar",
        &["tar", "gzip", "diff"],
        include_str!("cases/tar.sh"),
        "",
    ),
    case(
        "rsync",
        &["rsync", "cmp"],
        include_str!("cases/rsync.sh"),
        "",
    ),
    case(
        "cp, dd, sort, sed",
        &["cmp", "gzip", "awk"],
        include_str!("cases/copy.sh"),
        "",
    ),
    case(
        "bash",
        &["bash", "mkfifo"],
        include_str!("cases/bash.sh"),
        "",
    ),
    case("python", &["python3"], include_str!("cases/python.sh"), ""),
    case(
        "redis",
        &["redis-server", "redis-cli", "redis-benchmark"],
        include_str!("cases/redis.sh"),
        "",
    ),
    case(
        "make -j4",
        &["make", "gcc", "ar"],
        include_str!("cases/make.sh"),
        "",
    ),
    case("fio verify", &["fio"], include_str!("cases/fio.sh"), ""),
];
