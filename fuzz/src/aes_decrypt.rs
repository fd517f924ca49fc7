//! Sends frames of any bytes to a decrypter. It never panics, passes no frame that was not
//! encrypted, and restores encrypted frames.

use myelin_functions::aes::TRAILER_LEN;
use myelin_functions::{Discard, Function, Packet, Verdict, instantiate};
use myelin_packet::{Meta, parse};
use myelin_spec::{AesDecryptConfig, AesEncryptConfig, Cipher, FunctionConfig, SecretKey};

const ROOM: usize = 64;

fn encrypter(cipher: Cipher) -> Box<dyn Function> {
    let config = AesEncryptConfig {
        cipher,
        keys: vec![SecretKey::new(vec![7; 32])],
        mtu: 9216,
    };
    instantiate(&FunctionConfig::AesEncrypt(config)).expect("a function")
}

fn decrypter(cipher: Cipher) -> Box<dyn Function> {
    let config = AesDecryptConfig {
        cipher,
        keys: vec![SecretKey::new(vec![7; 32])],
        replay_window: 64,
        sessions: 2,
    };
    instantiate(&FunctionConfig::AesDecrypt(config)).expect("a function")
}

/// Returns the frame that the function forwards for a frame that parses.
fn send(function: &mut dyn Function, frame: &[u8]) -> Option<Vec<u8>> {
    let meta = Meta::new(1, 2, 3, 0, &parse(frame).expect("a frame that parses"));
    let mut buffer = [frame, &[0; ROOM]].concat();
    let mut packet = Packet::new(&mut buffer, 0, frame.len(), meta, 0).expect("a packet");
    let verdict = function.process(&mut packet, &mut Discard);
    (verdict == Verdict::Forward).then(|| packet.bytes().to_vec())
}

/// Runs the target on one input.
pub fn run(frame: &[u8]) {
    let Ok(headers) = parse(frame) else { return };
    let end = usize::from(headers.end);
    for cipher in [Cipher::Aes128Gcm, Cipher::Aes256Ctr] {
        let mut shared_decrypter = decrypter(cipher);
        let passed = send(&mut *shared_decrypter, frame).is_some();
        assert!(!(passed && cipher.is_authenticated()));

        let Some(sealed) = send(&mut *encrypter(cipher), frame) else {
            continue;
        };
        // The frame with the key identifier and session of an encrypted one.
        let mut forged = frame.to_vec();
        let payload = usize::from(headers.payload);
        let sealed_end = usize::from(parse(&sealed).expect("a frame that parses").end);
        let overhead = sealed_end - end;
        if end - payload >= overhead {
            let trailer = &sealed[sealed_end - overhead..][..TRAILER_LEN];
            forged[end - overhead..][..TRAILER_LEN].copy_from_slice(trailer);
            let passed = send(&mut *shared_decrypter, &forged).is_some();
            assert!(!(passed && cipher.is_authenticated()));
        }
        let opened = send(&mut *decrypter(cipher), &sealed).expect("an authentic packet");
        assert_eq!(opened[payload..], frame[payload..end]);
    }
}
