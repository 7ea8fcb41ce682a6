//! What moves nothing, is refused, or is no cancellation point: answers and bytes are the kernel's, and the file stays
//! staged.

use super::*;

/// What a program says and leaves, and whether the file was staged at the end of the case.
fn case(place: &Place, program: &Path, mode: Option<&str>, case: &str) -> (String, String, bool) {
    let _ = fs::remove_file(place.file());
    let mut command = place.command(program, mode);
    let output = run(command.arg(case).arg(place.file()));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let complained = text(&output.stderr);
    assert!(matches!(&*complained, "" | "staged\n"), "{complained}");
    (
        text(&output.stdout),
        place.content(),
        !complained.is_empty(),
    )
}

#[track_caller]
fn agree(name: &str, what: &str, stays: bool) {
    let Some(place) = Place::new(name) else {
        return;
    };
    let program = place.compile("corners");
    let plain = case(&place, &program, None, what);
    for reason in (plain.0.lines()).filter_map(|line| line.strip_prefix("skipped: ")) {
        skipped::skip(reason);
    }
    for mode in ALL {
        let words = match mode {
            _ if !stays || !stages_here(mode) || mode == APPENDS => mode.to_owned(),
            mode => format!("{mode} ADIT_REQUIRE=1"),
        };
        let (said, left, staged) = case(&place, &program, Some(&words), what);
        assert_eq!((&said, &left), (&plain.0, &plain.1), "{words}");
        if stays && stages_here(mode) {
            assert!(staged, "{words}");
        }
    }
}

#[test]
fn what_moves_nothing_leaves_a_file_staged() {
    agree("nothing", "nothing", true);
}

/// A database that asks whether its log can be mapped, and is refused, writes to a staged file.
#[test]
fn who_is_refused_a_mapping_leaves_a_file_staged() {
    let is_dax = scratch::medium() == adit_pmem::MediumKind::Dax;
    agree("mapped", "mapped", !is_dax);
}

#[test]
fn messages_without_descriptors_leave_a_file_staged() {
    agree("messages", "messages", true);
}

#[test]
fn what_is_asked_of_a_descriptor_by_number_leaves_it_staged() {
    agree("flags", "flags", true);
    agree("names", "names", false);
}

/// A fault that cannot be handled is the kernel's to find.
#[test]
fn a_bad_address_by_number_is_an_error() {
    agree("address", "address", false);
}

/// Where a fault cannot be handled the kernel reads which file is meant.
#[test]
fn blocks_are_cloned_while_signals_are_blocked() {
    agree("cloned", "cloned", false);
}

/// The kernel exchanges, or compares, what the others consist of as well.
#[test]
fn files_that_a_request_names_are_published() {
    agree("exchanged", "exchanged", false);
}

/// The kernel reads and writes the file of a loop device, by the description that it was given.
#[test]
fn a_loop_device_has_the_file() {
    for case in ["device", "configured", "blocked"] {
        agree(case, case, false);
    }
}

#[test]
fn a_cut_is_no_cancellation_point() {
    agree("points", "points", false);
}

/// What the engine takes, the stack of a handler, a thread or a coroutine may not have: nothing beside it is overwritten,
/// whether the file is staged there or was before.
#[test]
fn a_small_stack_is_enough() {
    for case in [
        "stack",
        "further",
        "thread",
        "coroutine",
        "deep",
        "interrupted",
        "endings",
    ] {
        agree(case, case, false);
    }
}

/// Who was started under a filter finds the calls that he makes himself, and no others.
#[test]
fn what_a_filter_lets_through_is_written() {
    agree("jail", "jail", false);
}

/// Nobody looks for room in a sandbox that knows none of the calls which that takes.
#[test]
fn a_sandboxed_program_is_asked_nothing() {
    agree("sandbox", "sandbox", false);
}
