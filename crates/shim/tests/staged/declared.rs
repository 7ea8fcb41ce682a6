//! Declared directories: several programs, and several descriptions of one, have a file staged at once.

use super::*;

/// Two of them.
fn two_sharers(place: &Place, program: &Path, mode: &str) -> [Told; 2] {
    [(), ()].map(|()| sharer(place, program, mode))
}

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

pub(super) const REQUIRED: [&str; 3] = [
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

/// libc moves a stream that only appends to the end that the kernel knows, and remembers that place.
#[test]
fn a_stream_that_appends_begins_behind_what_is_staged() {
    for mode in REQUIRED.into_iter().chain(["atomic", "posix"]) {
        for (stream, served) in [("O a", true), ("O ac", false), ("Z a", false)] {
            if !served && mode.contains("REQUIRE") {
                continue;
            }
            let Some((place, program)) = place("appended") else {
                return;
            };
            let named = place.file().display().to_string();
            let (mut one, mut other) = (
                sharer(&place, &program, "atomic"),
                sharer(&place, &program, mode),
            );
            one.all_well(&[&format!("o0 rw {named}"), "w0 first "]);
            other.all_well(&[&format!("{stream} {named}")]);
            assert_eq!(other.tell("E"), "0 6", "{mode}, {stream}");
            other.all_well(&["P second"]);
            assert_eq!(other.tell("E"), "0 12", "{mode}, {stream}");
            one.end();
            other.end();
            assert_eq!(place.content(), "first second", "{mode}, {stream}");
        }
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

/// What an open cuts that was to make the file, and somebody else has made and written it just before.
#[test]
fn what_was_made_meanwhile_is_cut_for_all() {
    if !has_strace() {
        return;
    }
    for mode in REQUIRED.into_iter().chain(["strict", "posix"]) {
        for case in [("rwct", "open"), ("rct", "open to read"), ("", "stream")] {
            let Some(mut meanwhile) = made_meanwhile(mode, case) else {
                return;
            };
            // On a busy machine it may be later than that, which shows nothing.
            for _ in 0..20 {
                if meanwhile {
                    break;
                }
                meanwhile = made_meanwhile(mode, case).expect("the place was there before");
            }
            assert!(meanwhile, "{mode}: {case:?}");
        }
    }
}

/// Whether the file was made while another program opened it, which then had to cut it.
fn made_meanwhile(mode: &str, (letters, what): (&str, &str)) -> Option<bool> {
    let (place, program) = place("made")?;
    let file = place.file();
    let named = file.display();
    fs::remove_file(&file).expect("the file");
    // What the other cuts in the kernel is the kernel's for all.
    let mut one = sharer(&place, &program, "atomic");
    // The first looks what there is, the second opens it.
    let late = "openat:delay_enter=1000000:when=2";
    let dir = file.with_file_name("");
    let mode = format!("{mode} ADIT_PATH={}", dir.display());
    let traced = place.traced(&program, &mode, Some(late));
    let mut other = Told::of(&mut place.for_the_file_alone(&traced));
    let begun = Instant::now();
    match letters {
        "" => other.say(&format!("W {named}")),
        letters => other.say(&format!("o0 {letters} {named}")),
    }
    std::thread::sleep(Duration::from_millis(300));
    one.all_well(&[&format!("o0 rwac {named}"), "w0 one ", "f0", "w0 two "]);
    let meanwhile = begun.elapsed() < Duration::from_secs(1);
    assert_eq!(other.hear(), "0 -", "{mode}: {what}");
    if meanwhile {
        one.sees(&file, "");
        one.all_well(&["w0 three"]);
        assert_eq!(other.tell(&format!("F {named}")), "0 three");
        one.sees(&file, "three");
    }
    one.end();
    other.end();
    assert!(!meanwhile || place.content() == "three", "{mode}: {what}");
    Some(meanwhile)
}

/// A description that the kernel serves from the start, by its number, writes to what others have staged.
#[test]
fn a_standard_descriptor_is_the_kernels() {
    for mode in MODES {
        let Some((place, program)) = place("standard") else {
            return;
        };
        let file = place.file();
        let named = file.display();
        let [mut one, mut other] = two_sharers(&place, &program, mode);
        one.all_well(&[&format!("o0 rwa {named}"), "w0 one "]);
        other.all_well(&[&format!("z0 wa {named}"), "w0 two "]);
        one.sees(&file, "one two ");
        one.all_well(&["w0 three "]);
        other.all_well(&["w0 four"]);
        one.sees(&file, "one two three four");
        one.end();
        other.end();
        assert_eq!(place.content(), "one two three four", "{mode}");
    }
}

/// So is a stream that libc reads and writes by itself: one that is never cancelled, as all are that have a character set,
/// or one with such a number. What libc cuts by opening it nobody publishes afterwards.
#[test]
fn a_stream_that_is_not_served_is_the_kernels() {
    let streams = [
        ("O", "ac", "one two "),
        ("O", "a+,ccs=UTF-8", "one "),
        ("O", "r+c", "two "),
        ("O", "rc", "one "),
        ("O", "wc", "two "),
        ("Z", "a", "one two "),
        ("Z", "w", "two "),
    ];
    for (mode, (call, letters, begin)) in MODES
        .into_iter()
        .chain(["posix"])
        .flat_map(|mode| streams.map(|stream| (mode, stream)))
    {
        let Some((place, program)) = place("streams") else {
            return;
        };
        let what = format!("{mode}: {call} {letters}");
        let file = place.file();
        let named = file.display();
        let mut one = sharer(&place, &program, "strict");
        let mut other = sharer(&place, &program, mode);
        one.all_well(&[&format!("o0 rwa {named}"), "w0 one "]);
        other.all_well(&[&format!("{call} {letters} {named}")]);
        if begin.contains("two") {
            other.all_well(&["P two "]);
        }
        one.sees(&file, begin);
        one.all_well(&["w0 three "]);
        let whole = format!("{begin}three ");
        if letters.starts_with('r') {
            assert_eq!(other.tell("G"), format!("0 {whole}"), "{what}");
        }
        one.sees(&file, &whole);
        one.end();
        other.end();
        assert_eq!(place.content(), whole, "{what}");
    }
}

/// What bars a declared file, or looks whether it is one, takes more room than a handler's stack may have: nothing below that
/// is touched.
#[test]
fn a_small_stack_is_enough_to_bar_a_file() {
    for call in [
        "O wc F",
        "O ac F",
        "O rc F",
        "z0 wa F",
        "Z a F",
        "o0 rw F",
        "o0 rwt F",
        "W F",
        "T 1 F",
        "h F",
        "u 1000000000 F",
        "R F F.moved",
        "H F F.linked",
        "I two F",
        "S F",
        "W F.new",
        "O a F.newer",
    ] {
        let Some((place, program)) = place("room") else {
            return;
        };
        let named = place.file().display().to_string();
        let [mut one, mut other] = two_sharers(&place, &program, "strict");
        one.all_well(&[&format!("o0 rwa {named}"), "w0 one "]);
        println!("{call}");
        let said = other.tell(&format!("K{}", call.replace('F', &named)));
        assert!(said.starts_with("0 "), "{said}");
        one.end();
        other.end();
    }
}

/// A program that has opened nothing sees how long a file is that others have staged, and when it was changed.
#[test]
fn who_only_looks_sees_what_is_staged() {
    for mode in REQUIRED.into_iter().chain(["posix"]) {
        let Some((place, program)) = place("looked") else {
            return;
        };
        let named = place.file().display().to_string();
        let mut one = sharer(&place, &program, "atomic ADIT_REQUIRE=1");
        let mut other = sharer(&place, &program, mode);
        assert_eq!(other.tell(&format!("S {named}")), "0 0");
        one.all_well(&[&format!("o0 rwa {named}"), "w0 one "]);
        assert_eq!(other.tell(&format!("S {named}")), "0 4", "{mode}");
        let changed = format!("M {named}");
        assert_eq!(one.tell(&changed), other.tell(&changed), "{mode}");
        one.all_well(&["w0 two "]);
        assert_eq!(other.tell(&format!("S {named}")), "0 8", "{mode}");
        one.all_well(&["c0"]);
        assert_eq!(other.tell(&format!("S {named}")), "0 8", "{mode}");
        assert_eq!(one.tell(&changed), other.tell(&changed), "{mode}");
    }
}

/// What another program does to names, times and rights finds all of it in the file; and a time that was set stays.
#[test]
fn names_times_and_rights_are_changed_by_others() {
    for mode in ["strict", "atomic", "posix"] {
        let Some((place, program)) = place("changed") else {
            return;
        };
        let file = place.file();
        let dir = file.with_file_name("");
        let named = file.display();
        // Until it is committed nobody publishes it for its age.
        let mut one = sharer(&place, &program, "atomic");
        let mut other = sharer(&place, &program, mode);
        one.all_well(&[&format!("o0 rwa {named}"), "w0 one "]);
        other.all_well(&[&format!("u 1000000000 {named}")]);
        assert_eq!(place.content(), "one ", "{mode}: times");
        for sharer in [&mut one, &mut other] {
            assert_eq!(sharer.tell(&format!("M {named}")), "0 1000000000.000000000");
        }
        // It is not published any more with an older time.
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(one.tell(&format!("M {named}")), "0 1000000000.000000000");
        one.all_well(&["w0 two "]);
        assert_ne!(other.tell(&format!("M {named}")), "0 1000000000.000000000");
        other.all_well(&[&format!("h {named}")]);
        assert_eq!(place.content(), "one two ", "{mode}: rights");
        one.all_well(&["w0 three "]);
        let moved = dir.join("moved");
        other.all_well(&[&format!("R {named} {}", moved.display())]);
        let content = || fs::read_to_string(&moved).expect("the file");
        assert_eq!(content(), "one two three ", "{mode}: its name");
        // Nobody else has it open, so it is staged again by the name that it has now.
        one.all_well(&["w0 four"]);
        one.sees(&moved, "one two three four");
        one.all_well(&["c0"]);
        assert_eq!(content(), "one two three four", "{mode}: after the close");
        // A directory takes its files along.
        let (from, to) = (dir.join("from"), dir.join("to"));
        fs::create_dir(&from).expect("a directory");
        fs::write(from.join("file"), "").expect("a file");
        one.all_well(&[&format!("o0 rwa {}", from.join("file").display()), "w0 one"]);
        other.all_well(&[&format!("R {} {}", from.display(), to.display())]);
        let content = fs::read_to_string(to.join("file")).expect("the file");
        assert_eq!(content, "one", "{mode}: the name of its directory");
        one.end();
        other.end();
    }
}

/// What somebody stages anew, after the file was taken from all, the others go by at their very next call, whatever it is.
#[test]
fn what_is_staged_anew_is_seen_at_the_next_call() {
    for mode in MODES {
        let Some((place, program)) = place("anew") else {
            return;
        };
        let file = place.file();
        let named = file.display();
        let [mut one, mut other] = two_sharers(&place, &program, mode);
        let mut third = sharer(&place, &program, mode);
        one.all_well(&[&format!("o0 rw {named}"), "w0 begin"]);
        other.all_well(&[&format!("o0 rw {named}"), "p0 0 B"]);
        let mut content = "Begin".to_owned();
        for (call, text) in [("e0", " end"), ("s0", " size"), ("r0", " read")] {
            third.all_well(&[&format!("u 1000000000 {named}")]);
            one.all_well(&[&format!("p0 {} {text}", content.len())]);
            content += text;
            let expected = match call {
                "r0" => content.clone(),
                _ => content.len().to_string(),
            };
            assert_eq!(other.tell(call), format!("0 {expected}"), "{mode}: {call}");
        }
        third.all_well(&[&format!("u 1000000000 {named}")]);
        one.all_well(&["p0 0 b"]);
        content.replace_range(..1, "b");
        other.all_well(&["f0"]);
        assert_eq!(place.content(), content, "{mode}: after the sync");
        for sharer in [one, other, third] {
            sharer.end();
        }
    }
}

/// What a program has locked through a description that only reads stays locked when it cuts the file by its name.
#[test]
fn cutting_by_name_keeps_locks() {
    for mode in MODES.into_iter().chain(["posix"]) {
        let Some((place, program)) = place("locks") else {
            return;
        };
        let file = place.file();
        let named = file.display();
        let mut one = sharer(&place, &program, mode);
        let mut other = sharer(&place, &program, "strict");
        other.all_well(&[&format!("o0 rwa {named}"), "w0 long text"]);
        one.all_well(&[&format!("o0 r {named}"), "l0 r", &format!("T 4 {named}")]);
        assert_eq!(other.tell("l0 w"), format!("{} -", libc::EAGAIN), "{mode}");
        other.sees(&file, "long");
        other.all_well(&["w0 er"]);
        one.sees(&file, "longer");
        one.end();
        other.all_well(&["l0 w"]);
        other.end();
        assert_eq!(place.content(), "longer", "{mode}");
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
        let [mut one, mut other] = two_sharers(&place, &program, mode);
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
            let [mut one, mut other] = two_sharers(&place, &program, mode);
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

/// What the kernel copies from a place that it is told is the file, with what others have staged of it.
#[test]
fn what_the_kernel_copies_is_what_others_have_staged() {
    for mode in MODES.into_iter().chain(["posix"]) {
        let Some((place, program)) = place("copied") else {
            return;
        };
        let named = place.file().display().to_string();
        let [mut one, mut other] = two_sharers(&place, &program, "atomic");
        let mut reader = sharer(&place, &program, mode);
        one.all_well(&[&format!("o0 rwa {named}"), "w0 one "]);
        other.all_well(&[&format!("o0 rwa {named}"), "w0 two "]);
        reader.all_well(&[&format!("o0 r {named}")]);
        assert_eq!(reader.tell("x0"), "0 one two ", "{mode}");
        one.all_well(&["w0 three "]);
        assert_eq!(reader.tell("r0"), "0 one two three ", "{mode}");
        other.all_well(&["w0 four"]);
        assert_eq!(reader.tell("x0"), "0 one two three four", "{mode}");
        assert_eq!(other.tell("x0"), "0 one two three four", "{mode}");
        for sharer in [one, other, reader] {
            sharer.end();
        }
        assert_eq!(place.content(), "one two three four", "{mode}");
    }
}

/// Who is started with a descriptor that nobody saw being opened reads and writes with the others; and what libc cuts for
/// him, or maps, has nothing published over it.
#[test]
fn what_libc_opens_inside_itself_is_the_kernels() {
    for mode in MODES.into_iter().chain(["posix"]) {
        for (act, whole) in [("i", "one two "), ("I three", "three"), ("D", "one two ")] {
            let Some((place, program)) = place("spawned") else {
                return;
            };
            let what = format!("{mode}: {act}");
            let file = place.file();
            let named = file.display();
            let [mut one, mut other] = two_sharers(&place, &program, "atomic");
            let mut third = sharer(&place, &program, mode);
            one.all_well(&[&format!("o0 rwa {named}"), "w0 one "]);
            other.all_well(&[&format!("o0 rwa {named}"), "w0 two "]);
            let said = third.tell(&format!("{act} {named}"));
            assert_eq!(
                said,
                if act == "i" { "0 one two " } else { "0 -" },
                "{what}"
            );
            one.sees(&file, whole);
            assert_eq!(place.content(), whole, "{what}");
            other.all_well(&["w0 four"]);
            one.sees(&file, &format!("{whole}four"));
            for sharer in [one, other, third] {
                sharer.end();
            }
            assert_eq!(place.content(), format!("{whole}four"), "{what}");
        }
    }
}

/// A file that is open already when it comes into the directory is the kernel's for those who find it there.
#[test]
fn a_file_that_comes_while_it_is_open_is_the_kernels() {
    for (mode, act) in MODES
        .into_iter()
        .chain(["posix"])
        .flat_map(|mode| [(mode, "R"), (mode, "H"), (mode, "its directory")])
    {
        if (mode, act) == ("posix", "its directory") {
            // That mode does not look at a file again that it opened elsewhere.
            continue;
        }
        let Some((place, program)) = place("came") else {
            return;
        };
        let what = format!("{mode}: {act}");
        let dir = place.file().with_file_name("declared");
        let [from, to] = [place.file().with_file_name("outside"), dir.join("inside")];
        for made in [&dir, &from] {
            fs::create_dir(made).expect("a directory");
        }
        let (outside, inside) = (from.join("came"), to.join("came"));
        fs::write(&outside, "").expect("the file");
        let comes = match act {
            "its directory" => format!("R {} {}", from.display(), to.display()),
            _ => {
                fs::create_dir(&to).expect("a directory");
                format!("{act} {} {}", outside.display(), inside.display())
            }
        };
        let sharer = |mode: &str| {
            let mode = format!("{mode} ADIT_PATH={}", dir.display());
            Told::of(&mut place.command(&program, Some(&mode)))
        };
        // Its first writes are the kernel's, wherever the mode lets them.
        let mut one = sharer(&format!("{mode} ADIT_KERNEL_BLOCKS=100"));
        let (mut other, mut third) = (sharer("strict"), sharer("atomic"));
        one.all_well(&[
            &format!("o0 rw {}", outside.display()),
            "w0 one ",
            &format!("o1 r {}", outside.display()),
        ]);
        third.all_well(&[&comes]);
        one.all_well(&["w0 two "]);
        for sharer in [&mut other, &mut third] {
            sharer.all_well(&[&format!("o0 rw {}", inside.display())]);
            assert_eq!(sharer.tell("r0"), "0 one two ", "{what}");
        }
        other.all_well(&["p0 0 O"]);
        one.all_well(&["p0 4 T"]);
        third.all_well(&["p0 8 three"]);
        one.all_well(&["p0 0 o"]);
        for sharer in [&mut one, &mut other, &mut third] {
            assert_eq!(sharer.tell("r0"), "0 one Two three", "{what}");
        }
        assert_eq!(one.tell("r1"), "0 one Two three", "{what}");
        for sharer in [one, other, third] {
            sharer.end();
        }
        let content = fs::read_to_string(&inside).expect("the file");
        assert_eq!(content, "one Two three", "{what}");
    }
}

/// A file that has another name somewhere else is shared by nobody: who opens it by that follows nobody.
#[test]
fn a_file_of_several_names_is_staged_by_one_alone() {
    for (mode, act) in MODES
        .into_iter()
        .chain(["posix"])
        .flat_map(|mode| [(mode, "before"), (mode, "by one"), (mode, "behind them")])
    {
        let Some((place, program)) = place("names") else {
            return;
        };
        let what = format!("{mode}: {act}");
        let outside = place.file();
        let dir = outside.with_file_name("declared");
        fs::create_dir(&dir).expect("a directory");
        let inside = dir.join("named");
        fs::rename(&outside, &inside).expect("the file");
        let link = || fs::hard_link(&inside, &outside).expect("a link");
        if act == "before" {
            link();
        }
        let sharer = |mode: &str| {
            let mode = format!("{mode} ADIT_PATH={}", dir.display());
            Told::of(&mut place.command(&program, Some(&mode)))
        };
        let (mut one, mut other, mut third) = (sharer("atomic"), sharer(mode), sharer(mode));
        one.all_well(&[&format!("o0 rw {}", inside.display()), "w0 one "]);
        other.all_well(&[&format!("o0 rw {}", inside.display())]);
        other.all_well(&["p0 4 two "]);
        match act {
            "by one" => one.all_well(&[&format!("H {} {}", inside.display(), outside.display())]),
            "behind them" => link(),
            _ => {}
        }
        third.all_well(&[&format!("o0 rw {}", outside.display())]);
        assert_eq!(third.tell("r0"), "0 one two ", "{what}");
        third.all_well(&["p0 0 O"]);
        one.all_well(&["p0 4 T", "p0 8 three"]);
        other.all_well(&["p0 1 N"]);
        for sharer in [&mut one, &mut other, &mut third] {
            assert_eq!(sharer.tell("r0"), "0 ONe Two three", "{what}");
        }
        // Whoever is left may stage it, and gives way to who opens it.
        one.end();
        other.end();
        third.all_well(&["p0 0 o"]);
        let mut last = sharer(mode);
        last.all_well(&[&format!("o0 rw {}", inside.display()), "p0 1 n"]);
        assert_eq!(third.tell("r0"), "0 one Two three", "{what}");
        third.all_well(&["p0 4 t"]);
        assert_eq!(last.tell("r0"), "0 one two three", "{what}");
        last.end();
        third.end();
        assert_eq!(place.content(), "one two three", "{what}");
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
            let [mut one, mut other] = two_sharers(&place, &program, mode);
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

/// With monitor and standby killed at once nobody knows who has a seat: who leaves ends the staging for all.
#[test]
fn without_a_monitor_who_leaves_a_file_ends_its_staging() {
    for mode in MODES {
        let Some((place, program)) = place("alone") else {
            return;
        };
        let file = place.file();
        let named = file.display();
        let [mut one, mut other] = two_sharers(&place, &program, mode);
        one.all_well(&[&format!("o0 rwa {named}"), "w0 one "]);
        other.all_well(&[&format!("o0 rwa {named}"), "w0 two "]);
        // It knows the pool.
        let mut plain = sharer(&place, &program, "posix");
        assert_eq!(plain.tell(&format!("S {named}")), "0 8");
        let monitor = place.monitors_pid();
        let standby = started_by(&monitor);
        let mut kill = Command::new("kill");
        kill.args(["-KILL", &standby, &monitor]);
        assert!(kill.status().expect("kill(1)").success());
        one.all_well(&["c0"]);
        other.all_well(&["w0 three ", "c0"]);
        assert_eq!(place.content(), "one two three ", "{mode}");
        // Whom the kernel serves now finds no length of before.
        plain.all_well(&[&format!("o0 rwa {named}"), "w0 four"]);
        plain.sees(&file, "one two three four");
        plain.end();
        one.end();
        other.end();
        assert_eq!(place.content(), "one two three four", "{mode}");
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

/// Who has no descriptor left can neither look who has the file staged nor ask for it: it is not written behind the others'
/// backs.
#[test]
fn who_has_no_descriptor_left_writes_nothing_behind_the_others_backs() {
    for mode in MODES.into_iter().chain(["posix"]) {
        for monitored in [true, false] {
            let Some((mut place, program)) = place("used-up") else {
                return;
            };
            let named = place.file().display().to_string();
            let mut one = sharer(&place, &program, "strict");
            one.all_well(&[&format!("o0 rwa {named}")]);
            let mut other = sharer(&place, &program, mode);
            other.all_well(&[&format!("o0 rwa {named}"), "L 0"]);
            one.all_well(&["w0 one "]);
            if !monitored {
                kill_both(&mut place);
            }
            let refused = format!("{} -", libc::EMFILE);
            for (what, answer) in [("r0", "0 one "), ("w0 two ", &refused), ("r0", "0 one ")] {
                assert_eq!(other.tell(what), answer, "{mode}, {monitored}: {what}");
            }
            other.all_well(&["L -", "w0 three "]);
            one.all_well(&["w0 four "]);
            one.sees(&place.file(), "one three four ");
            one.end();
            other.end();
            assert_eq!(place.content(), "one three four ", "{mode}, {monitored}");
        }
    }
}

/// Nor by who had none left but that of the file: he cannot look at all.
#[test]
fn who_opens_with_his_last_descriptor_writes_nothing_behind_the_others_backs() {
    for mode in MODES.into_iter().chain(["posix"]) {
        let Some((place, program)) = place("last-one") else {
            return;
        };
        let named = place.file().display().to_string();
        let mut one = sharer(&place, &program, "strict");
        one.all_well(&[&format!("o0 rwa {named}"), "w0 one "]);
        let mut other = sharer(&place, &program, mode);
        other.all_well(&["L 1", &format!("o0 rwa {named}")]);
        let refused = format!("{} -", libc::EMFILE);
        for change in ["w0 two ", "t0 2"] {
            assert_eq!(other.tell(change), refused, "{mode}: {change}");
        }
        one.all_well(&["w0 three "]);
        other.all_well(&["L -", "w0 four "]);
        one.sees(&place.file(), "one three four ");
        one.end();
        other.end();
        assert_eq!(place.content(), "one three four ", "{mode}");
    }
}

/// Nor does the kernel copy something there for him, or open the file in a way that it is the kernel's from the start.
#[test]
fn no_other_door_leads_behind_the_others_backs_without_a_descriptor() {
    for mode in MODES.into_iter().chain(["posix"]) {
        let Some((place, program)) = place("other-doors") else {
            return;
        };
        let named = place.file().display().to_string();
        let source = place.file().with_file_name("source");
        fs::write(&source, "copied ").expect("the source");
        let mut one = sharer(&place, &program, "strict");
        one.all_well(&[&format!("o0 rw {named}")]);
        let mut other = sharer(&place, &program, mode);
        other.all_well(&[
            &format!("o1 r {}", source.display()),
            &format!("o0 rw {named}"),
            "L 0",
        ]);
        one.all_well(&["w0 one "]);
        let refused = format!("{} -", libc::EMFILE);
        assert_eq!(other.tell("X0 1"), refused, "{mode}: a copy");
        other.all_well(&["L -", "c0", "L 1"]);
        assert_eq!(other.tell(&format!("o0 rws {named}")), refused, "{mode}");
        one.all_well(&["w0 two "]);
        other.all_well(&["L -", &format!("o0 rws {named}"), "w0 o"]);
        one.sees(&place.file(), "one two ");
        one.end();
        other.end();
        assert_eq!(place.content(), "one two ", "{mode}");
    }
}

/// A monitor that is stopped gives no seat, but nor does it to anybody else: the kernel writes.
#[test]
fn who_writes_beside_a_stopped_monitor_goes_on() {
    let Some((place, program)) = place("stopped") else {
        return;
    };
    let named = place.file().display().to_string();
    let mut one = sharer(&place, &program, "strict");
    one.all_well(&[&format!("o0 rwa {named}")]);
    signal("-STOP", &place.monitors_pid());
    one.all_well(&["w0 one ", "w0 two "]);
    signal("-CONT", &place.monitors_pid());
    one.all_well(&["w0 three"]);
    one.end();
    assert_eq!(place.content(), "one two three");
}

/// What must be staged is tried again when there is a descriptor, and takes nothing from the others until then.
#[test]
fn what_must_be_staged_is_when_there_is_a_descriptor_again() {
    for mode in &REQUIRED[1..] {
        let Some((place, program)) = place("again") else {
            return;
        };
        let named = place.file().display().to_string();
        let sharer = || sharer(&place, &program, mode);
        let (mut one, mut other, mut third) = (sharer(), sharer(), sharer());
        for (who, says) in [
            (&mut one, "one "),
            (&mut other, "other "),
            (&mut third, "third "),
        ] {
            who.all_well(&[&format!("o0 rwa {named}"), &format!("w0 {says}")]);
        }
        // It ends for all then.
        third.kill();
        wait_for("what the dead one has left", || {
            place.content() == "one other third "
        });
        one.all_well(&["w0 1 "]);
        other.all_well(&["L 0"]);
        assert_eq!(other.tell("w0 2 "), format!("{} -", libc::EMFILE), "{mode}");
        one.all_well(&["w0 3 "]);
        other.all_well(&["L -", "w0 4 "]);
        one.all_well(&["w0 5 "]);
        let expected = "one other third 1 3 4 5 ";
        one.sees(&place.file(), expected);
        other.sees(&place.file(), expected);
        one.end();
        other.end();
        assert_eq!(place.content(), expected, "{mode}");
    }
}

/// Kills the monitor and its standby at one instant, so that neither makes another of the other.
pub(super) fn kill_both(place: &mut Place) {
    let monitor = place.monitors_pid();
    let standby = started_by(&monitor);
    assert!(!standby.is_empty(), "there is no standby");
    for which in ["-STOP", "-KILL"] {
        let both = Command::new("kill")
            .args([which, &monitor, &standby])
            .status();
        assert!(both.expect("kill").success());
    }
    let _ = place.monitor.wait();
}

/// The monitor that the next `adit run` starts; it ends with this.
struct Next(u32);

fn next_monitor(place: &Place) -> Next {
    super::faults::begins_another(place).expect("what runs already");
    let mut next = None;
    wait_for("the next monitor", || {
        next = monitors::monitor_of(&place.dir.join("run"));
        next.is_some()
    });
    Next(next.expect("it was seen"))
}

impl Drop for Next {
    fn drop(&mut self) {
        let _ = Command::new("kill")
            .args(["-INT", &self.0.to_string()])
            .status();
    }
}

/// Two programs that share a file and have written to it, without monitor and standby. They need neither.
fn orphans(name: &str, mode: &str) -> Option<(Place, PathBuf, [Told; 2])> {
    let (mut place, program) = place(name)?;
    let named = place.file().display().to_string();
    let [mut one, mut other] = two_sharers(&place, &program, mode);
    one.all_well(&[&format!("o0 rwa {named}"), "w0 one "]);
    other.all_well(&[&format!("o0 rwa {named}"), "w0 two "]);
    kill_both(&mut place);
    one.all_well(&["w0 three "]);
    other.sees(&place.file(), "one two three ");
    Some((place, program, [one, other]))
}

/// Nobody takes over: those who share a file go on, sync it, close it and die, and nothing acknowledged is missing.
#[test]
fn sharers_go_on_without_monitor_and_standby() {
    for mode in MODES.into_iter().chain(REQUIRED) {
        for one_dies in [false, true] {
            let Some((place, _, [mut one, mut other])) = orphans("orphans", mode) else {
                return;
            };
            let file = place.file();
            other.all_well(&["w0 four "]);
            one.sees(&file, "one two three four ");
            one.all_well(&["f0"]);
            assert_eq!(place.content(), "one two three four ", "{mode}: synced");
            one.all_well(&["w0 five "]);
            if one_dies {
                one.kill();
            } else {
                one.all_well(&["c0"]);
                assert_eq!(
                    place.content(),
                    "one two three four five ",
                    "{mode}: closed"
                );
                one.end();
            }
            other.sees(&file, "one two three four five ");
            // Who leaves takes it from all, and where it must be staged nobody can do that anew.
            let must_be_staged = REQUIRED.contains(&mode) && !mode.starts_with("sync");
            if must_be_staged && !one_dies {
                assert_eq!(other.tell("w0 six"), format!("{} -", libc::ECONNREFUSED));
                other.end();
                assert_eq!(place.content(), "one two three four five ", "{mode}");
                continue;
            }
            other.all_well(&["w0 six"]);
            other.sees(&file, "one two three four five six");
            other.end();
            assert_eq!(place.content(), "one two three four five six", "{mode}");
        }
    }
}

/// Who opens such a file sees what the others have staged, and does not write to it behind their backs: where nobody can
/// give him a seat beside them, all of them have the kernel's file.
#[test]
fn who_opens_what_is_shared_without_a_monitor_sees_it() {
    for mode in MODES.into_iter().chain(REQUIRED) {
        let Some((place, program, [mut one, mut other])) = orphans("orphans-file", mode) else {
            return;
        };
        let file = place.file();
        let named = file.display();
        let mut reader = sharer(&place, &program, mode);
        reader.all_well(&[&format!("o0 r {named}")]);
        reader.sees(&file, "one two three ");
        other.all_well(&["w0 four "]);
        reader.sees(&file, "one two three four ");
        let mut late = sharer(&place, &program, mode);
        let opened = late.tell(&format!("o0 rwa {named}"));
        let mut expected = "one two three four ".to_owned();
        if ["atomic ADIT_REQUIRE=1", "strict ADIT_REQUIRE=1"].contains(&mode) {
            assert_eq!(opened, format!("{} -", libc::ECONNREFUSED), "{mode}");
        } else {
            assert_eq!(opened, "0 -", "{mode}");
            late.all_well(&["w0 five ", "p0 0 O"]);
            late.sees(&file, "one two three four five O");
            for (who, adds) in [
                (&mut one, "six "),
                (&mut late, "seven "),
                (&mut other, "eight"),
            ] {
                who.all_well(&[&format!("w0 {adds}")]);
            }
            expected = "one two three four five Osix seven eight".to_owned();
            late.sees(&file, &expected);
        }
        for mut sharer in [one, other, reader] {
            sharer.sees(&file, &expected);
            sharer.end();
        }
        late.end();
        assert_eq!(place.content(), expected, "{mode}");
    }
}

/// A mapping, a child, and a second description that nobody stages have the kernel's file, whole, and so have all.
#[test]
fn what_the_kernel_needs_is_taken_from_all_without_a_monitor() {
    for mode in MODES {
        for act in ["m0", "k0", "o1"] {
            let Some((place, _, [mut one, mut other])) = orphans("orphans-kernel", mode) else {
                return;
            };
            let file = place.file();
            let staged = "one two three ";
            match act {
                "o1" => other.all_well(&[&format!("o1 rw {}", file.display()), "p1 0 O", "p1 0 o"]),
                _ => assert_eq!(other.tell(act), format!("0 {staged}"), "{mode}"),
            }
            if act == "k0" {
                assert_eq!(other.hear(), "0 -");
            }
            for _ in 0..3 {
                one.all_well(&["w0 1"]);
                other.all_well(&["w0 2"]);
            }
            let all = format!("{staged}121212");
            one.sees(&file, &all);
            other.sees(&file, &all);
            one.end();
            other.end();
            assert_eq!(place.content(), all, "{mode} {act}");
        }
    }
}

/// Who takes the file from all by one of its names keeps the record locks that he has on it, also through a description by
/// which nobody publishes it.
#[test]
fn who_takes_a_file_from_all_without_a_monitor_keeps_his_locks() {
    for reads in [false, true] {
        let Some((place, program, [mut one, other])) = orphans("orphans-locks", "strict") else {
            return;
        };
        let [file, moved] = ["file", "moved"].map(|name| place.file().with_file_name(name));
        let (file, moved) = (file.display(), moved.display());
        let mut locker = other;
        let mut others = Vec::new();
        if reads {
            others.push(std::mem::replace(
                &mut locker,
                sharer(&place, &program, "strict"),
            ));
            locker.all_well(&[&format!("o0 r {file}")]);
        }
        locker.all_well(&["l0 r", &format!("R {file} {moved}")]);
        let content = || fs::read_to_string(moved.to_string()).expect("the file");
        assert_eq!(content(), "one two three ", "it was taken from all");
        assert_eq!(
            one.tell("l0 w"),
            format!("{} -", libc::EAGAIN),
            "reads: {reads}"
        );
        one.all_well(&["w0 four"]);
        locker.all_well(&["c0"]);
        one.all_well(&["l0 w"]);
        for sharer in [one, locker].into_iter().chain(others) {
            sharer.end();
        }
        assert_eq!(content(), "one two three four", "reads: {reads}");
    }
}

/// The next monitor does not know of them. It lets nobody write beside them, and who opens the file sees everything.
#[test]
fn sharers_and_the_monitor_that_comes_later() {
    for mode in MODES.into_iter().chain(REQUIRED) {
        let Some((place, program, [mut one, mut other])) = orphans("orphans-next", mode) else {
            return;
        };
        let file = place.file();
        let _next = next_monitor(&place);
        one.all_well(&["w0 four "]);
        other.sees(&file, "one two three four ");
        if !mode.starts_with("atomic") {
            wait_for("a second", || place.content() == "one two three four ");
        }
        let mut late = sharer(&place, &program, mode);
        late.all_well(&[&format!("o0 rwa {}", file.display()), "w0 five "]);
        one.all_well(&["w0 six"]);
        for mut sharer in [one, other, late] {
            sharer.sees(&file, "one two three four five six");
            sharer.end();
        }
        assert_eq!(place.content(), "one two three four five six", "{mode}");
    }
}

/// One has it staged alone, by a lease: whoever opens the file waits, and no longer than until somebody takes over.
#[test]
fn who_opens_a_declared_file_waits_until_somebody_takes_over() {
    if !super::group::may_look_into_others() {
        println!("skipped: processes may not look into each other");
        return;
    }
    for mode in MODES {
        let Some((mut place, program)) = place("orphan-lease") else {
            return;
        };
        let file = place.file();
        let named = file.display().to_string();
        let [mut one, mut other] = two_sharers(&place, &program, mode);
        one.all_well(&[&format!("o0 rwa {named}"), "w0 one "]);
        wait_for("the lease", || place.is_leased());
        kill_both(&mut place);
        one.all_well(&["w0 two "]);
        other.say(&format!("o0 rwa {named}"));
        std::thread::sleep(Duration::from_millis(300));
        assert!(place.is_leased(), "{mode}");
        let begun = Instant::now();
        let _next = next_monitor(&place);
        assert_eq!(other.hear(), "0 -");
        let waited = begun.elapsed();
        assert!(waited < scratch::limit(20), "{mode}: {waited:?}");
        other.all_well(&["w0 three "]);
        one.all_well(&["w0 four"]);
        for mut sharer in [one, other] {
            sharer.sees(&file, "one two three four");
            sharer.end();
        }
        assert_eq!(place.content(), "one two three four", "{mode}");
    }
}
