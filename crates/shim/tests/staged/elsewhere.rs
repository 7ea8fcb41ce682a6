//! A program that only looks at a file sees what another one has staged of it.

use super::*;

/// A place whose monitor publishes nothing by itself.
fn place(name: &str) -> Option<Place> {
    let mut place = Place::new(name)?;
    place.end_monitor();
    place.monitor = Place::watch_and_publish(&place.dir, "run", None, "3600").expect("a monitor");
    Some(place)
}

/// What all calls say of the file.
#[track_caller]
fn sees(looker: &mut Told, size: usize) {
    let said = looker.tell("");
    let mut words: Vec<i64> = said
        .split(' ')
        .map(|word| word.parse().expect("a number"))
        .collect();
    let holds = words.pop();
    let age = words.pop().expect("the time");
    assert!(
        words.iter().all(|said| *said == size as i64),
        "{said}, not {size}"
    );
    // `time` may be a tick behind the clock that a write is told by.
    assert!((-1..60).contains(&age) && holds == Some(1), "{said}");
}

#[test]
fn who_looks_sees_what_others_have_staged() {
    for mode in ALL.into_iter().filter(|mode| stages_here(mode)) {
        let Some(place) = place("looked-at") else {
            return;
        };
        let (file, writes, sizes) = (
            place.file(),
            place.compile("sharer"),
            place.compile("sizes"),
        );
        fs::write(&file, "").expect("the file");
        let looker = |mode| Told::of(place.command(&sizes, Some(mode)).arg(&file));
        let mut lookers = ["posix", "strict", APPENDS].map(looker);
        let mut all_see = |size| lookers.iter_mut().for_each(|looker| sees(looker, size));
        all_see(0);
        let mut writer = Told::of(&mut place.command(&writes, Some(mode)));
        writer.all_well(&[&format!("o0 rwa {}", file.display())]);
        for round in 1..=5 {
            writer.all_well(&["w0 0123456789"]);
            all_see(10 * round);
        }
        let staged = fs::metadata(&file).expect("the file").len() < 50;
        assert!(staged, "{mode}: there was nothing to be seen");
        writer.all_well(&["t0 7"]);
        all_see(7);
        writer.all_well(&["w0 01", "c0"]);
        all_see(9);
        assert_eq!(fs::metadata(&file).expect("the file").len(), 9);
        writer.all_well(&[
            &format!("o0 rwa {}", file.display()),
            "w0 of one who is killed",
        ]);
        writer.kill();
        all_see(29);
    }
}

/// A monitor that is stopped keeps nobody from looking for longer than it is waited for once.
#[test]
fn who_looks_does_not_wait_for_a_stopped_monitor() {
    let Some(place) = place("looked-at-alone") else {
        return;
    };
    let (file, writes, sizes) = (
        place.file(),
        place.compile("sharer"),
        place.compile("sizes"),
    );
    fs::write(&file, "").expect("the file");
    let mut looker = Told::of(place.command(&sizes, Some("posix")).arg(&file));
    let mut writer = Told::of(&mut place.command(&writes, Some("strict")));
    writer.all_well(&[&format!("o0 rwa {}", file.display()), "w0 0123456789"]);
    sees(&mut looker, 10);
    signal("-STOP", &place.monitors_pid());
    let begun = Instant::now();
    let said = [looker.tell(""), looker.tell("")];
    let took = begun.elapsed();
    signal("-CONT", &place.monitors_pid());
    assert!(took < Duration::from_secs(4), "{took:?}");
    // What was published last, which is nothing.
    assert!(said.iter().all(|line| line.starts_with("0 0 ")), "{said:?}");
}

/// A look that the monitor has no time for is no reason to leave it alone with what is to be staged.
#[test]
fn a_look_in_vain_keeps_nothing_from_being_staged() {
    let Some(place) = place("looked-at-in-vain") else {
        return;
    };
    let (file, program) = (place.file(), place.compile("sharer"));
    fs::write(&file, "").expect("the file");
    let mut writer = Told::of(&mut place.command(&program, Some("strict")));
    writer.all_well(&[&format!("o0 rwa {}", file.display()), "w0 0123456789"]);
    let mut command = place.command(&program, Some("strict"));
    let mut other = Told::of(command.env("ADIT_REQUIRE", "1"));
    let of_its_own = |nth| place.dir.join(format!("own{nth}"));
    other.all_well(&[&format!("o0 rwac {}", of_its_own(0).display()), "w0 first"]);
    signal("-STOP", &place.monitors_pid());
    other.tell(&format!("S0 {}", file.display()));
    signal("-CONT", &place.monitors_pid());
    other.all_well(&[&format!("o1 rwac {}", of_its_own(1).display()), "w1 more"]);
}

/// What is published has the time that its file has, whoever set it.
#[test]
fn who_looks_sees_times_that_others_have_set() {
    for mode in ["strict", "atomic"] {
        let Some(place) = Place::new("looked-at-times") else {
            return;
        };
        let (file, program) = (place.file(), place.compile("sharer"));
        fs::write(&file, "").expect("the file");
        let mut writer = Told::of(&mut place.command(&program, Some(mode)));
        let open = format!("o0 rwa {}", file.display());
        writer.all_well(&[&open, "w0 0123456789", "f0"]);
        let length = || fs::metadata(&file).expect("the file").len();
        wait_for("it is published", || length() == 10);
        let mut other = Told::of(&mut place.command(&program, Some("posix")));
        // The claim of who has published it ends a moment later.
        wait_for("the time is seen", || {
            other.all_well(&[&format!("u0 1 {}", file.display())]);
            other.tell(&format!("M0 {}", file.display())) == "0 1.000000000"
        });
        writer.all_well(&["w0 x"]);
        assert_ne!(
            other.tell(&format!("M0 {}", file.display())),
            "0 1.000000000"
        );
        assert_eq!(other.tell(&format!("S0 {}", file.display())), "0 11");
    }
}

/// The file is published by its program again and again, at any instant of a look; also between the kernel's answer,
/// which is held back here, and the look at who has the file.
#[test]
fn who_looks_while_it_is_published_sees_all() {
    let slow = has_strace().then_some("newfstatat:delay_exit=1000");
    for mode in ["strict", APPENDS]
        .into_iter()
        .filter(|mode| stages_here(mode))
    {
        for inject in [None].into_iter().chain(slow.map(Some)) {
            let Some(place) = place("looked-at-again") else {
                return;
            };
            let count = place.dir.join("count");
            let sizes = place.compile("sizes");
            fs::write(&count, [0; 4096]).expect("the count");
            let run = |mut command: Command, role: &str| {
                command.arg(place.file()).arg(role).arg(&count);
                command.stdout(Stdio::piped()).spawn().expect("timeout(1)")
            };
            let writer = run(place.command(&sizes, Some(mode)), "w");
            let looker = match inject {
                None => place.command(&sizes, Some("posix")),
                Some(inject) => place.traced(&sizes, "posix", Some(inject)),
            };
            let said = run(looker, "l").wait_with_output().expect("wait");
            let said = String::from_utf8_lossy(&said.stdout);
            assert_eq!(said, "0 behind, often\n", "{mode}, {inject:?}");
            let wrote = writer.wait_with_output().expect("wait");
            assert!(wrote.status.success(), "{wrote:?}");
        }
    }
}
