//! Reads recordings of any bytes.

use myelin_packet::capture;

/// Bytes beside each frame: a record's header, or the words of a simple block.
const LEAST_HEAD: usize = 16;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let Ok(frames) = capture::read(data) else {
        return;
    };
    let mut last_ns = 0;
    let mut len = 0;
    for frame in frames {
        assert!(
            frame.offset_ns >= last_ns,
            "no frame is before an earlier one"
        );
        last_ns = frame.offset_ns;
        len += LEAST_HEAD + frame.bytes.len();
    }
    assert!(len <= data.len(), "all frames are parts of the file");
}
