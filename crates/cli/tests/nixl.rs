//! `polyrail nixl`, from the outside. What it installs is tried by agents in crates/capi/tests/c/nixl.rs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PLUGIN: &str = "libplugin_POLYRAIL.so";
/// As in a backend that was built.
const BUILT: &str = "…\0Polyrail's backend for NIXL\0…";

fn polyrail(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_polyrail"));
    command.arg("nixl").args(arguments).env_remove("VIRTUAL_ENV").env_remove("NIXL_PLUGIN_DIR");
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A Python environment with a package of NIXL, and a backend that was built.
struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { folder: tempfile::tempdir().unwrap() };
        let packages = scene.packages();
        fs::create_dir_all(scene.plugins()).unwrap();
        for folder in ["nixl_cu12.libs", "nixl_cu12-1.5.1.dist-info", "nixl_cu12"] {
            fs::create_dir(packages.join(folder)).unwrap();
        }
        fs::write(scene.plugins().join("libplugin_UCX.so"), "ucx").unwrap();
        fs::write(packages.join(".nixl_cu12.mesonpy.libs/libnixl.so"), "nixl").unwrap();
        fs::write(packages.join("nixl_cu12.libs/libucp.so"), "ucp").unwrap();
        fs::write(scene.path("built.so"), BUILT).unwrap();
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn packages(&self) -> PathBuf {
        self.path("env/lib/python3.11/site-packages")
    }

    fn plugins(&self) -> PathBuf {
        self.packages().join(".nixl_cu12.mesonpy.libs/plugins")
    }
}

fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn the_backend_is_put_beside_the_others_and_taken_away_again() {
    let scene = Scene::new();
    let (environment, built) = (scene.text("env"), scene.text("built.so"));
    let before = files(&scene.plugins());
    for environment in [environment.as_str(), scene.packages().to_str().unwrap()] {
        // A second time replaces the first.
        for _ in 0..2 {
            let output = polyrail(&["install", environment, "--from", &built]);
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
            assert!(text(&output.stdout).contains("NIXL 1.5.1 finds it there"));
            assert_eq!(fs::read_to_string(scene.plugins().join(PLUGIN)).unwrap(), BUILT);
        }
        let output = polyrail(&["uninstall", environment]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(files(&scene.plugins()), before);
        let again = polyrail(&["uninstall", environment]);
        assert_eq!(again.status.code(), Some(0));
        assert!(text(&again.stdout).starts_with("nothing to do: "));
    }
}

#[test]
fn a_folder_of_its_own_has_links_as_the_package_has_files_and_goes_whole() {
    let scene = Scene::new();
    let (environment, built) = (scene.text("env"), scene.text("built.so"));
    let folder = scene.text("own");
    for _ in 0..2 {
        let output = polyrail(&["install", &environment, "--folder", &folder, "--from", &built]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let told = text(&output.stdout);
        assert!(
            told.contains("export NIXL_PLUGIN_DIR='") && told.contains("/own/nixl/plugins'"),
            "{told}"
        );
    }
    let plugins = scene.path("own/nixl/plugins");
    assert_eq!(files(&plugins), [PLUGIN, "libplugin_UCX.so"]);
    // What a backend finds by $ORIGIN/.. and $ORIGIN/../../nixl_cu12.libs.
    assert_eq!(fs::read_to_string(plugins.join("libplugin_UCX.so")).unwrap(), "ucx");
    assert_eq!(fs::read_to_string(plugins.join("../libnixl.so")).unwrap(), "nixl");
    assert_eq!(fs::read_to_string(scene.path("own/nixl_cu12.libs/libucp.so")).unwrap(), "ucp");
    assert_eq!(files(&scene.plugins()), ["libplugin_UCX.so"], "the environment stays as it is");

    fs::write(plugins.join("mine.so"), "mine").unwrap();
    let output = polyrail(&["uninstall", "--folder", &folder]);
    assert!(text(&output.stdout).contains("which has other files"), "{}", text(&output.stdout));
    assert_eq!(files(&plugins), ["mine.so"], "what somebody else has put there stays");
    fs::remove_dir_all(scene.path("own")).unwrap();
    polyrail(&["install", &environment, "--folder", &folder, "--from", &built]);
    let output = polyrail(&["uninstall", "--folder", &folder]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(!scene.path("own").exists());
    assert_eq!(
        fs::read_to_string(scene.packages().join("nixl_cu12.libs/libucp.so")).unwrap(),
        "ucp"
    );
}

#[test]
fn what_is_not_the_backend_is_neither_installed_nor_removed() {
    let scene = Scene::new();
    let (environment, built) = (scene.text("env"), scene.text("built.so"));
    let other = scene.text("other.so");
    fs::write(&other, "another backend").unwrap();
    fs::create_dir(scene.path("full")).unwrap();
    fs::write(scene.path("full/file"), "").unwrap();
    fs::create_dir(scene.path("empty")).unwrap();
    let (full, empty) = (scene.text("full"), scene.text("empty"));
    let refusals: [(&[&str], &str); 5] = [
        (&["install", &environment, "--from", &other], "is not Polyrail's backend for NIXL"),
        (&["install", &empty, "--from", &built], "has no NIXL"),
        (&["install", "--from", &built], "no Python environment is named or active"),
        (&["install", &environment, "--folder", &full, "--from", &built], "has other files"),
        (&["uninstall", "--folder", &full], "was not made by `polyrail nixl install --folder`"),
    ];
    for (words, said) in refusals {
        let output = polyrail(words);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        assert!(error.contains(said) && error.contains("\nhelp: "), "{words:?}: {error}");
    }
    let installed = scene.plugins().join(PLUGIN);
    fs::write(&installed, "somebody else's").unwrap();
    for words in [vec!["install", &environment, "--from", &built], vec!["uninstall", &environment]]
    {
        let output = polyrail(&words);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains("is not Polyrail's"), "{}", text(&output.stderr));
        assert_eq!(fs::read_to_string(&installed).unwrap(), "somebody else's");
    }
}

#[test]
fn a_check_tells_what_is_missing() {
    let scene = Scene::new();
    let environment = scene.text("env");
    let without = polyrail(&["check", &environment]);
    assert_eq!(without.status.code(), Some(1));
    assert!(text(&without.stdout).starts_with("NIXL 1.5.1 (nixl_cu12) in "));
    assert!(text(&without.stderr).contains("install it with `polyrail nixl install`"));
    polyrail(&["install", &environment, "--from", &scene.text("built.so")]);
    let output = polyrail(&["check", &environment]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        text(&output.stderr).contains("no environment with bin/python"),
        "{}",
        text(&output.stderr)
    );
    // Whatever goes wrong in the agent's process is told.
    fs::create_dir_all(scene.path("env/bin")).unwrap();
    std::os::unix::fs::symlink("/bin/false", scene.path("env/bin/python")).unwrap();
    let output = polyrail(&["check", &environment]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("an agent with the backend POLYRAIL fails"));
}

#[test]
fn the_text_that_tells_a_backend_is_in_its_source() {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integrations/nixl/src/plugin.cpp");
    let mark = BUILT.split('\0').nth(1).unwrap();
    assert!(fs::read_to_string(source).unwrap().contains(mark));
}
