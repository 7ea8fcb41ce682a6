//! `adit pool` on good pools, on bad ones, and on what dead programs left.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests run outside the library"
)]
#![allow(unsafe_code, reason = "file handles have no wrapper without libc")]

mod common;

use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use adit_pool::PoolFile;
use adit_store::pools::PoolList;
use common::dead::{expected, name_of, new_pool, on, stage, stage_and_die, stage_more};
use common::{Scratch, adit, finish, json, staged_of};

#[test]
fn a_new_pool_is_sound_empty_and_removable() {
    let scratch = Scratch::new();
    let pool = new_pool(&scratch);
    assert_eq!(
        fs::metadata(&pool).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let info = json(&on(["pool", "info", "--json"], &pool));
    assert_eq!(
        (info["size"].as_u64(), info["clean"].as_bool()),
        (Some(16 << 20), Some(true))
    );
    let done = on(["pool", "check", "--json"], &pool);
    assert_eq!(
        (done.code(), json(&done)["sound"].as_bool()),
        (Some(0), Some(true)),
        "{done:?}"
    );
    assert!(
        json(&on(["pool", "dump", "--json"], &pool))["records"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    for report in ["info", "check", "dump"] {
        let done = on(["pool", report], &pool);
        assert!(
            done.code() == Some(0) && done.out.contains("pool"),
            "{done:?}"
        );
    }
    let done = on(["pool", "create"], &pool);
    assert!(
        done.code() == Some(3) && done.err.contains("a file already"),
        "{done:?}"
    );
    let how = |path: &Path| {
        done.err
            .contains(&format!("adit pool rm {}", path.display()))
    };
    assert!(how(&pool), "{done:?}");
    // What is no pool is not removed by that.
    let other = scratch.0.join("other");
    std::fs::write(&other, "no pool").unwrap();
    let refused = on(["pool", "create"], &other);
    assert!(!refused.err.contains("pool rm"), "{refused:?}");
    let short = scratch.0.join("short");
    std::fs::copy(&pool, &short).unwrap();
    let cut = std::fs::OpenOptions::new()
        .write(true)
        .open(&short)
        .unwrap();
    cut.set_len(100).unwrap();
    let said = on(["pool", "info"], &short);
    assert!(said.err.contains("truncated: 100 bytes"), "{said:?}");
    let done = finish(adit(["run", "--pool"]).arg(&pool).arg("true"));
    assert_eq!(done.code(), Some(0), "{done:?}");
    assert_eq!(on(["pool", "rm"], &pool).code(), Some(0));
    assert!(!pool.exists());
}

#[test]
fn bad_arguments() {
    let scratch = Scratch::new();
    let file = scratch.0.join("pool");
    for size in ["0", "5", "4K", "-1", "x", "99999999999999T"] {
        let done = finish(adit(["pool", "create", "--size", size]).arg(&file));
        assert!(matches!(done.code(), Some(2 | 3)), "{size}: {done:?}");
        assert!(!file.exists(), "{size} left a file");
    }
    let done = finish(&mut adit(["pool", "create", "/proc/pool"]));
    assert!(
        done.code() == Some(3) && done.err.contains("next:"),
        "{done:?}"
    );
    let done = finish(adit(["pool", "create"]).arg(scratch.0.join("no/such/dir/pool")));
    assert!(
        done.code() == Some(3) && done.err.contains("next:"),
        "{done:?}"
    );
    assert_eq!(finish(&mut adit(["pool"])).code(), Some(2));
}

#[test]
fn what_is_no_pool_is_refused_by_every_command() {
    let scratch = Scratch::new();
    let no_pools = [
        scratch.0.join("missing"),
        scratch.0.clone(),
        scratch.file("empty", b"", 0o600),
        scratch.file(
            "text",
            &b"this is not a pool at all, but long enough ".repeat(4000),
            0o600,
        ),
        scratch.file("zeros", &[0; 1 << 20], 0o600),
        scratch.file("short", b"x", 0o600),
        // Zeros where a pool's superblocks are.
        scratch.file("image", &[&[0; 9000][..], b"disk"].concat(), 0o600),
    ];
    for file in &no_pools {
        for command in ["info", "check", "dump", "recover", "rm"] {
            let done = on(["pool", command], file);
            assert!(
                matches!(done.code(), Some(1 | 3)),
                "{command} {file:?}: {done:?}"
            );
            assert!(!(done.out.is_empty() && done.err.is_empty()));
        }
        let done = finish(adit(["run", "--pool"]).arg(file).arg("true"));
        assert_eq!(done.code(), Some(125), "{file:?}: {done:?}");
    }
    // None of the attempts removed anything, nor does force what may be anything.
    let for_all = scratch.file("for-all", &[0; 9000], 0o644);
    let said = on(["pool", "info"], &for_all).err;
    assert!(said.contains("not an Adit pool"), "{said}");
    for file in [&no_pools[3], &no_pools[5], &no_pools[6]] {
        let done = on(["pool", "rm", "--force"], file);
        assert_eq!(done.code(), Some(3), "{file:?}: {done:?}");
        assert!(done.err.contains("not an Adit pool"), "{done:?}");
        let said = on(["pool", "info"], file).err;
        assert!(!said.contains("remove it"), "{file:?}: {said}");
    }
    assert!(no_pools[1..].iter().all(|file| file.exists()));
    for file in [&no_pools[2], &no_pools[4]] {
        assert_eq!(on(["pool", "rm", "--force"], file).code(), Some(0));
    }
}

#[test]
fn damage_is_found_and_nothing_crashes() {
    let scratch = Scratch::new();
    let pool = new_pool(&scratch);
    let damaged = scratch.0.join("damaged");
    let damage = |change: &dyn Fn(&fs::File)| {
        fs::copy(&pool, &damaged).unwrap();
        change(&OpenOptions::new().write(true).open(&damaged).unwrap());
        let done = on(["pool", "check", "--json"], &damaged);
        assert_eq!(
            (done.code(), json(&done)["sound"].as_bool()),
            (Some(1), Some(false)),
            "{done:?}"
        );
        for command in ["info", "dump", "recover"] {
            let done = on(["pool", command], &damaged);
            assert!(done.code().is_some(), "{command} crashed: {done:?}");
        }
    };
    damage(&|file| file.set_len(3 << 20).unwrap());
    damage(&|file| file.set_len(5000).unwrap());
    damage(&|file| {
        file.write_all_at(&[0xff; 256], 0).unwrap();
        file.write_all_at(&[0xff; 256], 4096).unwrap();
    });

    // Others could have put anything into it.
    fs::copy(&pool, &damaged).unwrap();
    fs::set_permissions(&damaged, fs::Permissions::from_mode(0o666)).unwrap();
    let done = on(["pool", "info"], &damaged);
    assert!(
        done.code() == Some(3) && done.err.contains("chmod"),
        "{done:?}"
    );

    // Others read a file that is no pool, and go on reading it.
    let other = scratch.file("other", b"root:x:0:0:root:/root:/bin/bash", 0o644);
    for command in ["info", "check", "dump", "recover", "rm"] {
        let done = on(["pool", command], &other);
        assert!(
            done.code() == Some(3) && done.err.contains("not an Adit pool"),
            "{command}: {done:?}"
        );
        assert!(!done.err.contains("chmod"), "{command}: {done:?}");
    }
}

#[test]
fn recovery_brings_back_what_a_dead_program_staged() {
    let scratch = Scratch::new();
    let pool = new_pool(&scratch);
    let file = scratch.file("file", b"base file", 0o600);
    stage_and_die(&pool, &file);
    assert_eq!(fs::read(&file).unwrap(), b"base file");

    let dump = json(&on(["pool", "dump", "--json"], &pool));
    assert_eq!(dump["records"].as_array().unwrap().len(), 3, "{dump}");
    let done = on(["pool", "rm"], &pool);
    assert!(
        done.code() == Some(3) && done.err.contains("adit pool recover"),
        "{done:?}"
    );

    let done = on(["pool", "recover", "--json"], &pool);
    assert_eq!(done.code(), Some(0), "{done:?}");
    assert_eq!(json(&done)["files"][0]["records"], 3, "{done:?}");
    assert!(
        fs::read(&file).unwrap() == expected(),
        "the file is not what was staged"
    );

    // Once is enough, and afterwards nothing is in the way of its removal.
    fs::write(&file, b"newer").unwrap();
    let done = on(["pool", "recover"], &pool);
    assert_eq!(done.code(), Some(0), "{done:?}");
    assert_eq!(fs::read(&file).unwrap(), b"newer");
    assert_eq!(on(["pool", "check"], &pool).code(), Some(0));
    assert_eq!(on(["pool", "rm"], &pool).code(), Some(0));
}

/// A power cut leaves the line that was being written in part, and nobody was told of it: that is no failure. A line
/// before whole ones is.
#[test]
fn a_line_that_was_cut_off_is_told_from_a_damaged_one() {
    let scratch = Scratch::new();
    let pool = new_pool(&scratch);
    let file = scratch.file("file", b"base file", 0o600);
    stage_and_die(&pool, &file);
    let dump = json(&on(["pool", "dump", "--json"], &pool));
    let lines = dump["records"].as_array().unwrap().iter();
    let last = lines
        .map(|line| line["at"].as_u64().unwrap())
        .max()
        .unwrap();
    let damaged = scratch.0.join("damaged");
    let recovered = |change: &dyn Fn(&fs::File)| {
        fs::copy(&pool, &damaged).unwrap();
        let options = OpenOptions::new().read(true).write(true).open(&damaged);
        change(&options.unwrap());
        let check = on(["pool", "check"], &damaged).code();
        let told = json(&on(["pool", "dump", "--json"], &damaged));
        let done = on(["pool", "recover"], &damaged);
        (check, told["rejected"].as_array().unwrap().len(), done)
    };
    let (check, rejected, done) = recovered(&|file| {
        let mut half = [0; 32];
        file.read_exact_at(&mut half, last).unwrap();
        file.write_all_at(&half, last + 64).unwrap();
    });
    assert_eq!(
        (check, rejected, done.code()),
        (Some(0), 1, Some(0)),
        "{done:?}"
    );
    assert!(done.out.contains("1 log lines were cut off"), "{done:?}");
    assert!(
        fs::read(&file).unwrap() == expected(),
        "what is whole counts"
    );
    let (check, rejected, done) = recovered(&|file| {
        file.write_all_at(&[0xa5; 32], last - 64).unwrap();
    });
    assert_eq!(
        (check, rejected, done.code()),
        (Some(1), 1, Some(1)),
        "{done:?}"
    );
    assert!(
        done.out.contains("1 log lines were not believed"),
        "{done:?}"
    );
}

/// What nothing counts in is freed by who attaches first. What was not believed there was acknowledged all the same, and no
/// later look at the pool finds it: the recovery says so.
#[test]
fn damage_that_leaves_nothing_to_recover_is_told() {
    let scratch = Scratch::new();
    let pool = new_pool(&scratch);
    let [file, other] = ["file", "other"].map(|name| scratch.file(name, b"base file", 0o600));
    let attachment = stage(&pool, &file);
    let dump = json(&on(["pool", "dump", "--json"], &pool));
    // Behind them lies what does not count any more: they were not cut off.
    stage_more(&attachment, &other);
    let forgotten = attachment.enter_file(&name_of(&other)).unwrap();
    attachment.forget_file(forgotten).unwrap();
    drop(attachment);
    let options = OpenOptions::new().read(true).write(true).open(&pool);
    let bytes = options.unwrap();
    let lines = dump["records"].as_array().unwrap();
    assert_eq!(lines.len(), 3);
    for line in lines {
        let at = line["at"].as_u64().unwrap();
        let mut line = [0; 64];
        bytes.read_exact_at(&mut line, at).unwrap();
        (line[20], line[40]) = (!line[20], !line[40]);
        bytes.write_all_at(&line, at).unwrap();
    }
    assert_eq!(on(["pool", "check"], &pool).code(), Some(1));

    // The next program says so as well, of a pool that is listed.
    let copy = scratch.0.join("copy");
    fs::copy(&pool, &copy).unwrap();
    let list = PoolList::at(&scratch.0.join("state/adit"));
    fs::create_dir_all(scratch.0.join("state/adit")).unwrap();
    list.add(PoolFile::open(&pool).unwrap().pool().uuid(), &pool)
        .unwrap();
    let mut command = adit(["run", "--verbose", "true"]);
    command.env("XDG_STATE_HOME", scratch.0.join("state"));
    command.env("ADIT_RUNTIME_DIR", scratch.0.join("run"));
    let done = finish(&mut command);
    assert_eq!(done.code(), Some(0), "{done:?}");
    let first = lines.iter().map(|line| line["at"].as_u64().unwrap()).min();
    for said in [
        "what dead programs wrote is not all recovered: 3 log lines are damaged, the first at byte ",
        &format!(" {}: ", first.unwrap()),
        "next: look through the files",
    ] {
        assert!(done.err.contains(said), "{said}: {done:?}");
    }
    fs::rename(&copy, &pool).unwrap();

    let done = on(["pool", "recover"], &pool);
    assert_eq!(done.code(), Some(1), "{done:?}");
    for said in [
        "rejected at",
        "log lines were not believed",
        "1 attachments of dead programs cleared",
    ] {
        assert!(done.out.contains(said), "{said}: {done:?}");
    }
    let done = on(["pool", "recover", "--json"], &pool);
    assert_eq!(
        (done.code(), &json(&done)["rejected"]),
        (Some(0), &0.into())
    );
}

/// Who only looks at a pool sees as well who lives.
#[test]
fn the_living_are_told_from_the_dead() {
    let scratch = Scratch::new();
    let pool = new_pool(&scratch);
    let file = scratch.file("file", b"base file", 0o600);
    let told = || {
        let dump = json(&on(["pool", "dump", "--json"], &pool));
        (
            on(["pool", "info"], &pool).out,
            dump["slots"][0]["alive"].as_bool(),
        )
    };
    let attachment = stage(&pool, &file);
    let (info, alive) = told();
    assert!(info.contains("in use; 1 attached"), "{info}");
    assert_eq!(alive, Some(true));
    assert!(!on(["pool", "check"], &pool).out.contains("died attached"));
    drop(attachment);
    let (info, alive) = told();
    assert!(info.contains("not closed cleanly"), "{info}");
    assert_eq!(alive, Some(false));
    assert!(on(["pool", "check"], &pool).out.contains("died attached"));
}

#[test]
fn recovery_writes_into_no_other_file() {
    let scratch = Scratch::new();
    let pool = new_pool(&scratch);
    let file = scratch.file("file", b"base file", 0o600);
    stage_and_die(&pool, &file);
    // The name belongs to another file now; the first one lives on under another name.
    let away = scratch.0.join("away");
    fs::create_dir(&away).unwrap();
    let moved = away.join("moved");
    fs::rename(&file, &moved).unwrap();
    fs::write(&file, b"a stranger").unwrap();
    let done = on(["pool", "recover", "--json"], &pool);
    assert_eq!(done.code(), Some(1), "{done:?}");
    let kept = json(&done)["files"][0]["kept"].as_str().unwrap().to_owned();
    assert!(kept.contains("another file has its name"), "{kept}");
    assert_eq!(fs::read(&file).unwrap(), b"a stranger");

    // Nothing was lost: with its name back, the file gets its bytes.
    fs::rename(&moved, &file).unwrap();
    assert_eq!(on(["pool", "recover"], &pool).code(), Some(0));
    assert!(
        fs::read(&file).unwrap() == expected(),
        "the file is not what was staged"
    );
}

/// A file that was renamed in its directory is told by its name of now.
#[test]
fn recovery_tells_where_it_has_found_a_file() {
    let scratch = Scratch::new();
    let pool = new_pool(&scratch);
    let file = scratch.file("file", b"base file", 0o600);
    stage_and_die(&pool, &file);
    let renamed = scratch.0.join("renamed");
    fs::rename(&file, &renamed).unwrap();
    let done = on(["pool", "recover", "--json"], &pool);
    assert_eq!(done.code(), Some(0), "{done:?}");
    assert_eq!(json(&done)["files"][0]["path"], renamed.to_str().unwrap());
    assert!(fs::read(&renamed).unwrap() == expected());
}

/// A copy of a pool, in a backup say, names the files of the original, and what was written to them since would be undone.
#[test]
fn a_copy_of_a_pool_is_not_recovered_while_the_pool_is_there() {
    let scratch = Scratch::new();
    let pool = new_pool(&scratch);
    let file = scratch.file("file", b"base file", 0o600);
    let state = scratch.0.join("state");
    let uuid = *PoolFile::open(&pool).unwrap().pool().uuid();
    PoolList::at(&state.join("adit")).add(&uuid, &pool).unwrap();
    stage_and_die(&pool, &file);
    let copy = scratch.0.join("copy");
    fs::copy(&pool, &copy).unwrap();
    let recover = |pool: &std::path::Path| {
        let mut command = adit(["pool", "recover"]);
        finish(command.env("XDG_STATE_HOME", &state).arg(pool))
    };
    assert_eq!(recover(&pool).code(), Some(0));
    fs::write(&file, b"written since").unwrap();
    let link = scratch.0.join("link");
    std::os::unix::fs::symlink(&copy, &link).unwrap();
    for named in [&copy, &link] {
        let done = recover(named);
        assert_eq!(done.code(), Some(3), "{done:?}");
        let original = format!("a copy of the pool {}", pool.display());
        assert!(done.err.contains(&original), "{done:?}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"written since");
    // What is left of a pool that was lost is better than nothing.
    fs::write(&file, b"base file").unwrap();
    fs::remove_file(&pool).unwrap();
    assert_eq!(recover(&copy).code(), Some(0));
    assert!(fs::read(&file).unwrap() == expected());
}

/// A killed program or monitor has its leases until it has ended, which takes a while on a busy machine. That is waited
/// for.
#[test]
fn recovery_waits_for_the_lease_of_who_is_about_to_end() {
    /// The kernel's `F_SETSIG`, which libc does not name.
    const SET_SIGNAL: i32 = 10;
    let scratch = Scratch::new();
    let pool = new_pool(&scratch);
    let file = scratch.file("file", b"base file", 0o600);
    stage_and_die(&pool, &file);
    let leased = OpenOptions::new().write(true).open(&file).unwrap();
    // SAFETY: calls on a descriptor that lives. What tells of the recovery's open is a signal that is ignored.
    let taken = unsafe {
        libc::fcntl(leased.as_raw_fd(), SET_SIGNAL, libc::SIGURG) == 0
            && libc::fcntl(leased.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0
    };
    assert!(taken, "{}", std::io::Error::last_os_error());
    let about_to_end = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        drop(leased);
    });
    let done = on(["pool", "recover"], &pool);
    about_to_end.join().unwrap();
    assert_eq!(done.code(), Some(0), "{done:?}");
    assert!(done.out.contains("1 files recovered"), "{done:?}");
    assert!(
        fs::read(&file).unwrap() == expected(),
        "the file is not what was staged"
    );
}

#[test]
fn a_pool_is_not_removed_by_a_link_to_it() {
    let scratch = Scratch::new();
    let pool = new_pool(&scratch);
    let link = scratch.0.join("link");
    std::os::unix::fs::symlink(&pool, &link).unwrap();
    for arguments in [vec!["pool", "rm"], vec!["pool", "rm", "--force"]] {
        let done = finish(adit([]).args(arguments).arg(&link));
        assert_eq!(done.code(), Some(3), "{done:?}");
        assert!(done.err.contains(pool.to_str().unwrap()), "{done:?}");
        assert!(link.is_symlink() && pool.exists());
    }
    assert_eq!(on(["pool", "check"], &link).code(), Some(0));
}

#[test]
fn a_removed_file_can_be_given_up() {
    let scratch = Scratch::new();
    let pool = new_pool(&scratch);
    let [gone, stays] = ["gone", "stays"].map(|name| scratch.file(name, b"base file", 0o600));
    let ask = |paths: &[&Path]| {
        let paths = paths.iter().flat_map(|path| [Path::new("--give-up"), path]);
        finish(adit(["pool", "recover"]).arg(&pool).args(paths))
    };
    stage_and_die(&pool, &gone);
    fs::remove_file(&gone).unwrap();
    let done = ask(&[]);
    assert!(
        done.code() == Some(1) && done.out.contains("STILL IN THE POOL"),
        "{done:?}"
    );
    let how = format!("--give-up {}", gone.display());
    assert!(done.out.contains(&how), "{done:?}");
    assert_eq!(on(["pool", "rm"], &pool).code(), Some(3));

    // One that is there is brought up to date, whatever is asked for.
    stage_and_die(&pool, &stays);
    let done = ask(&[&stays]);
    assert!(
        done.code() == Some(3) && done.err.contains("nothing of it was given up"),
        "{done:?}"
    );
    assert!(fs::read(&stays).unwrap() == expected());
    assert_eq!(ask(&[&scratch.0.join("never")]).code(), Some(3));

    let done = ask(&[&gone]);
    assert!(
        done.code() == Some(0) && done.out.contains("given up: 3 records"),
        "{done:?}"
    );
    assert!(!gone.exists());
    assert_eq!(ask(&[]).code(), Some(0));
    assert_eq!(on(["pool", "rm"], &pool).code(), Some(0));
}

#[test]
fn what_is_staged_of_a_removed_file_can_be_lost_with_its_pool() {
    let scratch = Scratch::new();
    let pool = new_pool(&scratch);
    let file = scratch.file("file", b"base file", 0o600);
    stage_and_die(&pool, &file);
    fs::remove_file(&file).unwrap();
    assert_eq!(on(["pool", "rm"], &pool).code(), Some(3));
    assert_eq!(on(["pool", "rm", "--force"], &pool).code(), Some(0));
}

#[test]
fn a_pool_in_use_is_not_removed() {
    let scratch = Scratch::new();
    let pool = new_pool(&scratch);
    let attachment = PoolFile::open(&pool).unwrap().attach().unwrap();
    for arguments in [vec!["pool", "rm"], vec!["pool", "rm", "--force"]] {
        let done = finish(adit([]).args(arguments).arg(&pool));
        assert!(
            done.code() == Some(3) && done.err.contains("in use"),
            "{done:?}"
        );
    }
    let done = on(["pool", "info"], &pool);
    assert!(done.out.contains("pool"), "{done:?}");
    attachment.detach().unwrap();
    assert_eq!(on(["pool", "rm"], &pool).code(), Some(0));
}

#[test]
fn a_program_sees_what_dead_ones_staged_in_listed_pools() {
    let scratch = Scratch::new();
    let pool = new_pool(&scratch);
    let file = scratch.file("file", b"base file", 0o600);
    stage_and_die(&pool, &file);
    let list = PoolList::at(&scratch.0.join("state/adit"));
    let uuid = *PoolFile::open(&pool).unwrap().pool().uuid();
    let gone = scratch.0.join("gone");
    list.add(&[7; 16], &gone).unwrap();
    list.add(&uuid, &pool).unwrap();
    let stat = |arguments: &[&str]| {
        let mut command = adit(["stat"]);
        command.args(arguments);
        command.env("XDG_STATE_HOME", scratch.0.join("state"));
        command.env("ADIT_RUNTIME_DIR", scratch.0.join("run"));
        finish(&mut command)
    };
    let staged_of_it = || staged_of(&stat(&["--json"]), &file);
    let staged = staged_of_it();
    assert_eq!(staged.as_array().unwrap().len(), 1, "{staged}");
    assert_eq!(staged[0]["records"], 3);
    assert!(staged[0]["bytes"].as_u64().unwrap() >= 9050 - 4, "{staged}");
    assert!(stat(&[]).out.contains("staged file"));
    let cat = |verbose: &[&str]| {
        let mut command = adit(["run"]);
        command.args(verbose).arg("cat");
        command.arg(&file);
        command.env("XDG_STATE_HOME", scratch.0.join("state"));
        command.env("ADIT_RUNTIME_DIR", scratch.0.join("run"));
        finish(&mut command)
    };
    let done = cat(&[]);
    assert_eq!(done.code(), Some(0), "{done:?}");
    assert!(done.out.as_bytes() == expected(), "{done:?}");
    assert_eq!(done.err, "");
    let staged = staged_of_it();
    assert!(!staged.to_string().contains("\"records\":3"), "{staged}");

    // What cannot be recovered is told. Elsewhere what is not there may be on a disk that comes back.
    let in_memory = scratch.0.starts_with("/dev/shm");
    assert_eq!(
        list.read().len(),
        if in_memory { 1 } else { 2 },
        "what is gone from memory is not listed"
    );
    fs::write(&gone, b"no pool").unwrap();
    list.add(&[7; 16], &gone).unwrap();
    let done = cat(&["--verbose"]);
    assert_eq!(done.code(), Some(0), "{done:?}");
    let told = "nothing is recovered from this pool, or staged beside it: ";
    assert!(done.err.contains(told), "{done:?}");
    assert!(done.err.contains("next: adit pool check "), "{done:?}");
}

/// What a program writes before the bytes of a dead one are in the file would be written over by them: so they come first,
/// whatever limits the program has, or there is no program.
#[test]
fn recovery_is_not_held_to_the_limits_of_a_program() {
    let own = env!("CARGO_BIN_EXE_adit");
    for (limit, refused) in [
        ("-S -f 1", None),
        ("-S -v 9000000", None),
        ("-f 1", Some("ulimit -f")),
        ("-v 9000000", Some("ulimit -v")),
    ] {
        let scratch = Scratch::new();
        let pool = new_pool(&scratch);
        let file = scratch.file("data", b"base", 0o600);
        stage_and_die(&pool, &file);
        let list = PoolList::at(&scratch.0.join("state/adit"));
        fs::create_dir_all(scratch.0.join("state/adit")).unwrap();
        list.add(PoolFile::open(&pool).unwrap().pool().uuid(), &pool)
            .unwrap();
        let under = |limit: &str, rest: &[&str]| {
            let mut command = adit([]);
            let inner = format!("ulimit {limit}; exec {own} \"$@\"");
            let mut shell = std::process::Command::new("bash");
            shell.args(["-c", &inner, "bash"]).args(rest);
            for (name, value) in command.get_envs() {
                match value {
                    Some(value) => shell.env(name, value),
                    None => shell.env_remove(name),
                };
            }
            command = shell;
            command.env("XDG_STATE_HOME", scratch.0.join("state"));
            command.env("ADIT_RUNTIME_DIR", scratch.0.join("run"));
            finish(&mut command)
        };
        let reads = [
            "run",
            "bash",
            "-c",
            "ulimit -S -f; ulimit -S -v; cat $0",
            file.to_str().unwrap(),
        ];
        let done = under(limit, &reads);
        let Some(name) = refused else {
            let text = String::from_utf8(expected()).unwrap();
            assert!(done.out.ends_with(&text), "{limit}: {done:?}");
            // It has its limits nevertheless.
            let value = limit.rsplit(' ').next().unwrap();
            assert!(
                done.out.lines().any(|line| line == value),
                "{limit}: {done:?}"
            );
            continue;
        };
        assert_eq!(
            (done.code(), done.out.as_str()),
            (Some(125), ""),
            "{limit}: {done:?}"
        );
        assert!(done.err.contains(name), "{limit}: {done:?}");
        assert!(
            done.err.contains("next: adit pool recover "),
            "{limit}: {done:?}"
        );
        let done = under(limit, &["pool", "recover", pool.to_str().unwrap()]);
        assert_ne!(done.code(), Some(0), "{limit}: {done:?}");
        assert_eq!(on(["pool", "recover"], &pool).code(), Some(0));
        assert!(fs::read(&file).unwrap() == expected());
        // Others of the same user may have died beside this test, whose pools are nobody's business here.
        let runs = || {
            let done = under(limit, &["run", "echo", "ran"]);
            done.out == "ran\n" || !done.err.contains(pool.to_str().unwrap())
        };
        // Somebody who lives has it, and a monitor.
        let living = stage(&pool, &file);
        assert!(runs(), "{limit}");
        drop(living);
        assert_eq!(on(["pool", "recover"], &pool).code(), Some(0));
        // Nothing is to be recovered any more.
        assert!(runs(), "{limit}");
    }
}

/// Nobody tells the file of the words that only the living need: how long the pool is now, above all.
#[test]
fn a_pool_that_grew_is_sound_at_every_end() {
    let scratch = Scratch::beside(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let pool = new_pool(&scratch);
    let file = scratch.file("data", b"base", 0o600);
    let is_sound = |when: &str| {
        let check = on(["pool", "check"], &pool);
        assert_eq!(check.code(), Some(0), "{when}: {check:?}");
    };
    drop(stage(&pool, &file));
    let opened = PoolFile::open(&pool).unwrap();
    let attachment = opened.attach().unwrap();
    opened.grow(&attachment, 32 << 20).unwrap();
    is_sound("grown");
    drop((attachment, opened));
    is_sound("killed");
    let info = json(&on(["pool", "info", "--json"], &pool));
    assert_eq!(info["size"], 32 << 20, "{info}");
    assert_eq!(on(["pool", "recover"], &pool).code(), Some(0));
    is_sound("recovered and cut");
}

/// A file system that went down under programs loses what their pool's mirror had in memory: an older one comes back,
/// of a time when nothing was left, or of one when something else was.
#[test]
fn a_mirror_of_before_hides_nothing_from_recovery() {
    // On a disk, as a rule: pools in memory have none.
    let scratch = Scratch::beside(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let pool = new_pool(&scratch);
    let file = scratch.file("data", b"base", 0o600);
    let tables = scratch.0.join("pool.tables");
    let opened = PoolFile::open(&pool).unwrap();
    opened.detach(opened.attach().unwrap()).unwrap();
    if !tables.exists() {
        println!("skipped: it concerns pools with a mirror");
        return;
    }
    let clean = fs::read(&tables).unwrap();
    drop(opened);
    stage_and_die(&pool, &file);
    let unclean = fs::read(&tables).unwrap();
    assert_eq!(on(["pool", "recover"], &pool).code(), Some(0));
    fs::write(&file, b"base").unwrap();
    stage_and_die(&pool, &file);
    let mirror = OpenOptions::new().write(true).open(&tables).unwrap();
    for before in [unclean, clean] {
        mirror.write_all_at(&before, 0).unwrap();
        let info = json(&on(["pool", "info", "--json"], &pool));
        assert_eq!(info["clean"], false, "{info}");
        let check = on(["pool", "check"], &pool);
        assert_eq!(check.code(), Some(0), "{check:?}");
        assert!(check.out.contains("3 count"), "{check:?}");
    }
    let list = PoolList::at(&scratch.0.join("state/adit"));
    fs::create_dir_all(scratch.0.join("state/adit")).unwrap();
    list.add(PoolFile::open(&pool).unwrap().pool().uuid(), &pool)
        .unwrap();
    let mut command = adit(["run", "cat"]);
    command.arg(&file);
    command.env("XDG_STATE_HOME", scratch.0.join("state"));
    command.env("ADIT_RUNTIME_DIR", scratch.0.join("run"));
    let done = finish(&mut command);
    assert!(done.out.as_bytes() == expected(), "{:?}", done.err);
}
