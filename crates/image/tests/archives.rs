//! Good archives become directories. Broken and hostile ones are refused, and write nothing outside
//! of their root.

use std::fmt::Write as _;
use std::fs;
use std::io::{Cursor, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use flate2::Compression;
use flate2::write::GzEncoder;
use myelin_image::{ImageConfig, Limits, unpack, unpack_layer};
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

/// An entry: kind, path, target of a link, content.
type Entry<'a> = (EntryType, &'a str, &'a str, &'a [u8]);

const DIRECTORY: EntryType = EntryType::Directory;
const FILE: EntryType = EntryType::Regular;

/// Writes a layer. Paths go into the headers as they are, which `tar` itself refuses.
fn layer(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, path, target, content) in entries {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_entry_type(*kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o6755);
        header.set_mtime(1_000_000);
        header.set_uid(0);
        header.set_gid(0);
        header.set_cksum();
        builder.append(&header, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

fn compress(layer: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(layer).unwrap();
    encoder.finish().unwrap()
}

fn name_of(blob: &[u8]) -> String {
    let mut name = String::new();
    for byte in digest(&SHA256, blob).as_ref() {
        write!(name, "{byte:02x}").unwrap();
    }
    name
}

/// Writes an archive of these layers for this machine.
fn archive(layers: &[Vec<u8>], change: impl Fn(&mut Value)) -> Vec<u8> {
    let own = if cfg!(target_arch = "x86_64") {
        "amd64"
    } else {
        "arm64"
    };
    let mut builder = Builder::new(Vec::new());
    let mut add = |name: &str, content: &[u8]| {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, content).unwrap();
    };
    let mut blob = |content: &[u8]| {
        add(&format!("blobs/sha256/{}", name_of(content)), content);
        json!({ "digest": format!("sha256:{}", name_of(content)), "size": content.len() })
    };
    let config = json!({ "architecture": own, "os": "linux", "config": {
        "Entrypoint": ["/bin/server"], "Cmd": ["-v"], "Env": ["A=b"], "WorkingDir": "/srv" } });
    let config = blob(config.to_string().as_bytes());
    let layers: Vec<Value> = layers.iter().map(|layer| blob(layer)).collect();
    let mut manifest = json!({ "schemaVersion": 2, "config": config, "layers": layers });
    change(&mut manifest);
    let manifest = blob(manifest.to_string().as_bytes());
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    add("index.json", index.to_string().as_bytes());
    add("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#);
    builder.into_inner().unwrap()
}

fn unpack_into(root: &Path, archive: Vec<u8>) -> Result<ImageConfig, String> {
    unpack(Cursor::new(archive), root, &Limits::default()).map_err(|error| error.to_string())
}

#[test]
fn layers_become_one_directory() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    let lower = layer(&[
        (DIRECTORY, "./", "", b""),
        (DIRECTORY, "usr/", "", b""),
        (FILE, "usr/bin/server", "", b"server"),
        (FILE, "usr/old", "", b"old"),
        (FILE, "data/one", "", b"1"),
        (FILE, "data/two", "", b"2"),
        (EntryType::Symlink, "bin", "usr/bin", b""),
        // A name that no machine has at its root: a fault of the code finds nothing there.
        (DIRECTORY, "myelin-test-etc", "", b""),
        (
            EntryType::Symlink,
            "out",
            "../../../../myelin-test-etc",
            b"",
        ),
        (EntryType::Link, "copy", "usr/bin/server", b""),
    ]);
    let upper = layer(&[
        (FILE, "usr/.wh.old", "", b""),
        (FILE, "data/three", "", b"3"),
        // It hides the lower layer's files, not this layer's.
        (FILE, "data/.wh..wh..opq", "", b""),
        // Through the links of the lower layer, inside the root.
        (FILE, "bin/new", "", b"new"),
        (FILE, "out/file", "", b"own"),
    ]);
    let config = unpack_into(path, archive(&[compress(&lower), upper], |_| {}));
    let config = config.unwrap();
    assert_eq!(config.command, ["/bin/server", "-v"]);
    assert_eq!(
        (config.env[0].as_str(), config.directory.as_str()),
        ("A=b", "/srv")
    );
    assert_eq!((config.layers, config.entries), (2, 15));
    assert_eq!(fs::read(path.join("usr/bin/new")).unwrap(), b"new");
    assert_eq!(fs::read(path.join("myelin-test-etc/file")).unwrap(), b"own");
    assert!(!path.join("usr/old").exists());
    let data = fs::read_dir(path.join("data")).unwrap();
    let names: Vec<_> = data.flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["three"]);
    let server = fs::metadata(path.join("usr/bin/server")).unwrap();
    let copy = fs::metadata(path.join("copy")).unwrap();
    assert_eq!(server.ino(), copy.ino());
    assert_eq!(
        server.permissions().mode() & 0o7777,
        0o755,
        "no change of the user"
    );
    assert_eq!(server.mtime(), 1_000_000);
}

#[test]
fn hostile_layers_are_refused_and_write_nothing() {
    let around = tempfile::tempdir().unwrap();
    let root = around.path().join("root");
    fs::create_dir(&root).unwrap();
    let absolute = format!("{}/absolute", around.path().display());
    let first: Entry<'_> = (FILE, "first", "", b"x");
    let cases: &[(&[Entry<'_>], &str)] = &[
        (&[first, (FILE, "../escaped", "", b"x")], "leads out"),
        (&[first, (FILE, "a/../../escaped", "", b"x")], "leads out"),
        (&[first, (FILE, &absolute, "", b"x")], "root of the machine"),
        (
            &[first, (EntryType::Link, "a", "../around", b"")],
            "leads out",
        ),
        (
            &[first, (EntryType::Link, "a", "/myelin-test-etc/file", b"")],
            "root of the machine",
        ),
        (&[first, (EntryType::Link, "a", "", b"")], "no target"),
        (&[first, (EntryType::Char, "null", "", b"")], "a device"),
        (&[first, (EntryType::Block, "disk", "", b"")], "a device"),
        (&[first, (EntryType::Fifo, "pipe", "", b"")], "a pipe"),
        (
            &[first, (EntryType::new(b'Q'), "odd", "", b"")],
            "unknown kind",
        ),
        (&[first, (FILE, "d/.wh...", "", b"")], "removes no name"),
        (&[first, (FILE, "./", "", b"x")], "the root itself"),
    ];
    for (entries, expected) in cases {
        let layer = compress(&layer(entries));
        let error = unpack_layer(&layer, &root, &Limits::default()).unwrap_err();
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0, "{expected}");
    }
    // A link to a file that does not exist is found when it is written.
    let missing = layer(&[(EntryType::Link, "a", "b", b"")]);
    let error = unpack_layer(&missing, &root, &Limits::default()).unwrap_err();
    assert!(error.to_string().contains("does not exist"), "{error}");
    let nowhere = layer(&[(EntryType::Symlink, "a", "b", b""), (FILE, "a/c", "", b"x")]);
    let error = unpack_layer(&nowhere, &root, &Limits::default()).unwrap_err();
    assert!(error.to_string().contains("leads nowhere"), "{error}");
    let names: Vec<_> = fs::read_dir(around.path()).unwrap().flatten().collect();
    assert_eq!(names.len(), 1, "nothing outside of the root");
}

#[test]
fn links_never_lead_out_of_the_root() {
    let around = tempfile::tempdir().unwrap();
    let root = around.path().join("root");
    fs::create_dir(&root).unwrap();
    fs::write(around.path().join("victim"), "safe").unwrap();
    let out = format!("{}/victim", around.path().display());
    let layer = layer(&[
        (EntryType::Symlink, "up", "..", b""),
        (FILE, "up/victim", "", b"bad"),
        (EntryType::Symlink, "file", &out, b""),
        (FILE, "file", "", b"bad"),
        (EntryType::Symlink, "again", &out, b""),
        (EntryType::Link, "hard", "again", b""),
        (FILE, "hard", "", b"bad"),
        (EntryType::Symlink, "d", "/", b""),
        (FILE, "d/.wh.victim", "", b""),
        (DIRECTORY, "d", "", b""),
        (FILE, "d/in", "", b"x"),
    ]);
    unpack_layer(&layer, &root, &Limits::default()).unwrap();
    assert_eq!(fs::read(around.path().join("victim")).unwrap(), b"safe");
    assert_eq!(fs::read_dir(around.path()).unwrap().count(), 2);
    assert_eq!(fs::read(root.join("d/in")).unwrap(), b"x");
}

#[test]
fn sizes_have_limits() {
    let root = tempfile::tempdir().unwrap();
    let zeros = vec![0; 1 << 20];
    let bomb = compress(&layer(&[(FILE, "zeros", "", &zeros)]));
    assert!(bomb.len() < 1 << 14);
    let limits = Limits {
        bytes: 1 << 19,
        entries: 10,
    };
    let error = unpack_layer(&bomb, root.path(), &limits).unwrap_err();
    assert!(error.to_string().contains("larger than"), "{error}");
    let many: Vec<Entry<'_>> = vec![(DIRECTORY, "d", "", b""); 11];
    let error = unpack_layer(&layer(&many), root.path(), &limits).unwrap_err();
    assert!(
        error.to_string().contains("more than 10 entries"),
        "{error}"
    );
    // The reader would keep a long name in memory.
    let name = vec![b'a'; 2 << 20];
    let long = layer(&[
        (EntryType::GNULongName, "x", "", &name),
        (FILE, "x", "", b""),
    ]);
    let limits = Limits {
        bytes: 1 << 30,
        entries: 1 << 20,
    };
    let error = unpack_layer(&long, root.path(), &limits).unwrap_err();
    assert!(error.to_string().contains("a name or header"), "{error}");
    let deep = "d/".repeat(45);
    unpack_layer(&layer(&[(FILE, &deep, "", b"")]), root.path(), &limits).unwrap();
}

#[test]
fn broken_archives_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let good = layer(&[(FILE, "a", "", b"x")]);
    let refuse = |archive: Vec<u8>, expected: &str| {
        let error = unpack_into(root.path(), archive).unwrap_err();
        assert!(error.contains(expected), "{expected}: {error}");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0, "{expected}");
    };
    refuse(Vec::new(), "index.json");
    refuse(b"no archive at all".repeat(100), "no tar file");
    let whole = archive(std::slice::from_ref(&good), |_| {});
    refuse(compress(&whole), "gunzip");
    refuse(whole[..whole.len() / 3].to_vec(), "");
    let find = |text: &[u8]| {
        whole
            .windows(text.len())
            .position(|found| found == text)
            .unwrap()
    };
    let mut changed = whole.clone();
    changed[find(b"/bin/server") + 5] ^= 1;
    refuse(changed, "does not match its digest");
    let layers = || vec![good.clone()];
    refuse(
        archive(&layers(), |manifest| manifest["layers"] = json!([])),
        "0 layers",
    );
    let outside = json!([{ "digest": "sha256:../../myelin-test-etc/file" }]);
    refuse(
        archive(&layers(), |manifest| manifest["layers"] = outside.clone()),
        "not of the form",
    );
    refuse(
        archive(&layers(), |manifest| {
            manifest["layers"][0]["mediaType"] = json!("x+zstd");
        }),
        "zstd",
    );
    refuse(archive(&[good[..700].to_vec()], |_| {}), "");
}
