//! Declared directories: several programs, and several descriptions of one, have a file staged at once.

use super::*;

/// A program that declares the directory of the file.
fn sharer(place: &Place, program: &Path, mode: &str) -> Told {
    let declared = place.file().with_file_name("");
    let mode = format!("{mode} ADIT_PATH={}", declared.display());
    Told::of(&mut place.command(program, Some(&mode)))
}

impl Told {
    /// Everything that shows what is in the file, through descriptor 0 and by its name.
    #[track_caller]
    fn sees(&mut self, file: &Path, content: &str) {
        let file = file.display();
        let len = content.len();
        assert_eq!(self.tell("r0"), format!("0 {content}"));
        for size in ["s0".to_owned(), "e0".to_owned(), format!("S {file}")] {
            assert_eq!(self.tell(&size), format!("0 {len}"), "{size}");
        }
        assert_eq!(self.tell(&format!("F {file}")), format!("0 {content}"));
    }
}

fn place(name: &str) -> Option<(Place, PathBuf)> {
    let place = Place::new(name)?;
    let program = place.compile("sharer");
    fs::write(place.file(), "").expect("the file");
    Some((place, program))
}

const REQUIRED: [&str; 3] = [
    "sync ADIT_REQUIRE=1",
    "atomic ADIT_REQUIRE=1",
    "strict ADIT_REQUIRE=1",
];

#[test]
fn programs_see_each_other_at_once() {
    for mode in REQUIRED {
        let Some((place, program)) = place("shared") else {
            return;
        };
        let file = place.file();
        let named = file.display();
        let sharer = |mode: &str| sharer(&place, &program, mode);
        let (mut one, mut other) = (sharer(mode), sharer("strict ADIT_REQUIRE=1"));
        let (mut reader, mut plain) = (sharer(mode), sharer("posix"));
        one.all_well(&[&format!("o0 rw {named}"), "w0 first "]);
        other.all_well(&[&format!("o0 rwa {named}"), "w0 second "]);
        reader.all_well(&[&format!("o0 r {named}")]);
        plain.all_well(&[&format!("o0 r {named}")]);
        let mut all = [&mut one, &mut other, &mut reader, &mut plain];
        for sharer in &mut all {
            sharer.sees(&file, "first second ");
        }
        all[0].all_well(&["p0 6 SECOND", "w0 x"]);
        all[1].all_well(&["w0 third"]);
        for sharer in &mut all {
            sharer.sees(&file, "first SECOND xthird");
        }
        all[1].all_well(&["t0 7"]);
        for sharer in &mut all {
            sharer.sees(&file, "first S");
        }
        // By now it is published and read from the file.
        wait_for("the file", || {
            place.content() == "first S" || mode.starts_with("atomic")
        });
        all[0].all_well(&["w0 !"]);
        for sharer in &mut all {
            sharer.sees(&file, "first S!");
        }
        for sharer in [one, other, reader, plain] {
            sharer.end();
        }
        assert_eq!(place.content(), "first S!", "{mode}");
    }
}

#[test]
fn descriptions_of_one_program_see_each_other() {
    for mode in REQUIRED {
        let Some((place, program)) = place("twice") else {
            return;
        };
        let file = place.file();
        let named = file.display();
        let mut sharer = sharer(&place, &program, mode);
        sharer.all_well(&[
            &format!("o1 rw {named}"),
            "w1 one ",
            &format!("o0 r {named}"),
            &format!("o2 wa {named}"),
            "w2 two ",
            "p1 0 O",
        ]);
        sharer.sees(&file, "One two ");
        sharer.all_well(&["c1", "w2 three"]);
        sharer.sees(&file, "One two three");
        sharer.all_well(&["c2"]);
        assert_eq!(place.content(), "One two three", "{mode}: after the close");
        sharer.sees(&file, "One two three");
        sharer.end();
    }
}

/// What an open or a path cuts is cut for everybody, and what others append afterwards stays.
#[test]
fn what_is_cut_by_name_is_cut_for_all() {
    for mode in REQUIRED.into_iter().chain(["strict", "posix"]) {
        let Some((place, program)) = place("cut") else {
            return;
        };
        let file = place.file();
        let named = file.display();
        let sharer = |mode: &str| sharer(&place, &program, mode);
        let (mut one, mut other) = (sharer("strict"), sharer(mode));
        one.all_well(&[&format!("o0 rwa {named}"), "w0 long text"]);
        other.all_well(&[&format!("T 4 {named}")]);
        one.sees(&file, "long");
        one.all_well(&["w0 er"]);
        other.all_well(&[&format!("o0 rwt {named}")]);
        one.sees(&file, "");
        one.all_well(&["w0 new"]);
        println!("mode {mode}");
        other.sees(&file, "new");
        one.end();
        other.end();
        assert_eq!(place.content(), "new", "{mode}");
    }
}

/// Outsiders read after a sync, after the close, and a second later at most.
#[test]
fn outsiders_see_what_was_synced_and_closed() {
    for mode in MODES {
        let Some((place, program)) = place("outside") else {
            return;
        };
        let named = place.file().display().to_string();
        let mut one = sharer(&place, &program, mode);
        let mut other = sharer(&place, &program, mode);
        let outsider = fs::File::open(place.file()).expect("open");
        one.all_well(&[&format!("o0 rw {named}"), "w0 one "]);
        other.all_well(&[&format!("o0 rwa {named}"), "w0 two ", "f0"]);
        assert_eq!(place.content(), "one two ", "{mode}: after the sync");
        one.all_well(&["p0 0 O", "c0"]);
        assert_eq!(place.content(), "One two ", "{mode}: after the close");
        other.all_well(&["w0 three"]);
        if mode != "atomic" {
            wait_for("a second", || place.content() == "One two three");
        }
        drop(outsider);
        other.end();
        assert_eq!(place.content(), "One two three", "{mode}");
    }
}

/// A mapping, or a child, has the kernel's file: it is whole for them, and nobody stages it beside them.
#[test]
fn what_the_kernel_needs_is_taken_from_all() {
    for mode in MODES {
        for act in ["m0", "k0"] {
            let Some((place, program)) = place("barred") else {
                return;
            };
            let file = place.file();
            let named = file.display();
            let mut one = sharer(&place, &program, mode);
            let mut other = sharer(&place, &program, mode);
            one.all_well(&[&format!("o0 rwa {named}"), "w0 one "]);
            other.all_well(&[&format!("o0 rwa {named}"), "w0 two "]);
            assert_eq!(other.tell(act), "0 one two ", "{mode}");
            if act == "k0" {
                assert_eq!(other.hear(), "0 -");
            }
            for _ in 0..3 {
                one.all_well(&["w0 1"]);
                other.all_well(&["w0 2"]);
            }
            one.sees(&file, "one two 121212");
            other.sees(&file, "one two 121212");
            // Others find a file of the kernel's.
            if act == "m0" {
                assert_eq!(place.content(), "one two 121212", "{mode}");
            }
            let mut third = sharer(&place, &program, mode);
            third.all_well(&[&format!("o0 rwa {named}"), "w0 3"]);
            one.sees(&file, "one two 1212123");
            for sharer in [one, other, third] {
                sharer.end();
            }
            assert_eq!(place.content(), "one two 1212123", "{mode}");
        }
    }
}

/// A child uses what its parent has staged under a declaration, and nobody else: it asks for it as everywhere.
#[test]
fn a_child_asks_its_parent_for_a_declared_file() {
    for mode in MODES {
        let Some((place, program)) = place("child") else {
            return;
        };
        let file = place.file();
        let mut sharer = sharer(&place, &program, mode);
        sharer.all_well(&[&format!("o0 rwa {}", file.display()), "w0 one "]);
        assert_eq!(sharer.tell("k0 two "), "0 one ", "{mode}");
        assert_eq!(sharer.hear(), "0 -");
        sharer.all_well(&["w0 three"]);
        sharer.sees(&file, "one two three");
        sharer.end();
        assert_eq!(place.content(), "one two three", "{mode}");
    }
}

/// One is killed at work; the other one goes on, and nothing acknowledged is missing.
#[test]
fn who_is_killed_takes_nothing_from_the_others() {
    for mode in REQUIRED {
        for monitor_dies in [false, true] {
            let Some((mut place, program)) = place("killed") else {
                return;
            };
            let file = place.file();
            let named = file.display();
            let mut one = sharer(&place, &program, mode);
            let mut other = sharer(&place, &program, mode);
            one.all_well(&[&format!("o0 rwa {named}"), "w0 one "]);
            other.all_well(&[&format!("o0 rwa {named}"), "w0 two "]);
            if monitor_dies {
                place.kill_monitor();
            }
            one.all_well(&["w0 three "]);
            one.kill();
            other.sees(&file, "one two three ");
            wait_for("it goes on", || other.tell("w0 four") == "0 -");
            other.sees(&file, "one two three four");
            other.end();
            assert_eq!(place.content(), "one two three four", "{mode}");
        }
    }
}

/// Without the declaration two programs cannot have it, and the directory beside is not declared.
#[test]
fn what_is_not_declared_is_not_shared() {
    let Some((place, program)) = place("undeclared") else {
        return;
    };
    let named = place.file().display().to_string();
    let elsewhere = place.dir.join("elsewhere");
    fs::create_dir_all(&elsewhere).expect("a directory");
    let mode = format!("strict ADIT_REQUIRE=1 ADIT_PATH={}", elsewhere.display());
    let mut one = Told::of(&mut place.command(&program, Some(&mode)));
    let mut other = Told::of(&mut place.command(&program, Some(&mode)));
    let open = format!("o0 rwa {named}");
    one.all_well(&[&open, "w0 one "]);
    let refused = format!("{} -", libc::EBUSY);
    assert_eq!(other.tell(&open), refused);
    one.end();
    other.all_well(&[&open, "w0 two"]);
    other.end();
    assert_eq!(place.content(), "one two");
}
