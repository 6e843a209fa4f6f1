//! `quorate log`: what it prints and how it exits, for the golden files of the format.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SEGMENT: &str = "lane-0001-00000000.segment";
const PREPARED: &str = "lane-0001-00000001.segment";

/// The bytes of a golden file: lines of a place and sixteen bytes, without those that are zero.
fn golden(name: &str) -> Vec<u8> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/durability/tests/golden");
    let text = fs::read_to_string(home.join(format!("{name}.hex"))).unwrap();
    let mut lines = text.lines();
    let length = lines.next().unwrap().strip_prefix("bytes ").unwrap().parse().unwrap();
    let mut bytes = vec![0; length];
    for line in lines {
        let (at, rest) = line.split_once(' ').unwrap();
        let at = usize::from_str_radix(at, 16).unwrap();
        for (index, byte) in rest.split(' ').enumerate() {
            bytes[at + index] = u8::from_str_radix(byte, 16).unwrap();
        }
    }
    bytes
}

/// A directory with a log, which goes when the test ends.
struct Home(PathBuf);

impl Home {
    fn new(name: &str) -> Self {
        let home = std::env::temp_dir().join(format!("quorate-log-{}-{name}", std::process::id()));
        fs::create_dir_all(&home).unwrap();
        fs::write(home.join(SEGMENT), golden("segment")).unwrap();
        fs::write(home.join(PREPARED), golden("segment_prepared")).unwrap();
        Self(home)
    }

    fn damage(&self, offset: usize) {
        let mut bytes = fs::read(self.0.join(SEGMENT)).unwrap();
        bytes[offset] ^= 1;
        fs::write(self.0.join(SEGMENT), bytes).unwrap();
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Exit code and output.
fn log(command: &str, path: &Path) -> (i32, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_quorate"));
    let output = program.args(["log", command]).arg(path).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(said).unwrap())
}

#[test]
fn a_sound_directory_is_called_so() {
    let home = Home::new("sound");
    let (code, said) = log("verify", &home.0);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("sound, 4 entries behind 0, to 5"), "{said}");
    let (code, said) = log("inspect", &home.0);
    assert_eq!(code, 0, "{said}");
    assert!(
        said.starts_with("lane-0001-00000000.segment: segment 1 of lane 1 of node 2"),
        "{said}"
    );
    let (code, said) = log("inspect", &home.0.join(SEGMENT));
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("  offset 4096: entries 1 to 2, "), "{said}");
}

#[test]
fn damage_is_named_with_its_file_and_offset() {
    let home = Home::new("damaged");
    home.damage(4096 + 30);
    let (code, said) = log("verify", &home.0);
    assert_eq!(code, 1, "{said}");
    assert!(said.starts_with("lane-0001-00000000.segment, offset 4096: entries 1 to 2"), "{said}");
    assert!(said.contains("let it copy from the others"), "{said}");
    let (code, said) = log("inspect", &home.0.join(SEGMENT));
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("  offset 4096: damaged up to offset 8192"), "{said}");
    home.damage(20);
    let (code, said) = log("inspect", &home.0.join(SEGMENT));
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("offset 0: the header is damaged"), "{said}");
}

#[test]
fn what_is_not_there_is_said() {
    let home = Home::new("absent");
    for (command, path) in [
        ("verify", home.0.join("nowhere")),
        ("inspect", home.0.join("nowhere")),
        ("verify", home.0.join(SEGMENT)),
    ] {
        let (code, said) = log(command, &path);
        assert_eq!(code, 2, "{said}");
        assert!(said.starts_with("error: "), "{said}");
    }
}
