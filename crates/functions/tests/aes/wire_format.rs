//! Decodes the wire format with the plain reference.

use aws_lc_rs::hmac;
use myelin_packet::fixtures::build;
use myelin_spec::Cipher;

use super::plain_aes::PlainAes;
use super::{CIPHERS, assert_valid, encrypter, key, payload_of, run};

/// Computes HKDF (RFC 5869) step by step.
fn hkdf(salt: &[u8], secret: &[u8], info: &[u8], len: usize) -> Vec<u8> {
    let hash = |key: &[u8], data: &[u8]| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, key);
        hmac::sign(&key, data).as_ref().to_vec()
    };
    let prk = hash(salt, secret);
    let (mut out, mut block) = (Vec::new(), Vec::new());
    for count in 1_u8.. {
        block = hash(&prk, &[&block[..], info, &[count]].concat());
        out.extend(&block);
        if out.len() >= len {
            break;
        }
    }
    out.truncate(len);
    out
}

#[test]
fn hkdf_matches_test_case_1_of_rfc_5869() {
    let salt: Vec<u8> = (0..13).collect();
    let info: Vec<u8> = (0xf0..0xfa).collect();
    let okm = hkdf(&salt, &[0x0b; 22], &info, 42);
    assert_eq!(okm[..6], [0x3c, 0xb2, 0x5f, 0x25, 0xfa, 0xac]);
    assert_eq!(okm[39..], [0x18, 0x58, 0x65]);
}

/// Decrypts a payload. Returns the plaintext if the tag is correct.
fn decrypt(cipher: Cipher, sealed: &[u8], expected_counter: u64) -> Option<Vec<u8>> {
    let tag_len = if cipher.is_authenticated() { 16 } else { 0 };
    let (rest, tag) = sealed.split_at(sealed.len() - tag_len);
    let (ciphertext, trailer) = rest.split_at(rest.len() - 28);
    let secret = key(1);
    let id = hkdf(&[0; 32], secret.expose(), b"myelin aes 1 key identifier", 4);
    assert_eq!(trailer[..4], id);
    assert_eq!(trailer[20..], expected_counter.to_be_bytes());

    let info = format!("myelin aes 1 {cipher}");
    let key_len = cipher.key_len();
    let material = hkdf(
        &trailer[4..20],
        secret.expose(),
        info.as_bytes(),
        key_len + 12,
    );
    let (key, base) = material.split_at(key_len);
    let mut nonce: [u8; 12] = base.try_into().unwrap();
    for (byte, counter) in nonce[4..].iter_mut().zip(&trailer[20..]) {
        *byte ^= counter;
    }
    let aes = PlainAes::new(key);
    let mut data = ciphertext.to_vec();
    if cipher.is_authenticated() {
        // Encryption of the ciphertext decrypts it. The tag covers the ciphertext, so a second
        // encryption computes the tag.
        aes.gcm(nonce, trailer, &mut data);
        let found = aes.gcm(nonce, trailer, &mut data.clone());
        (found == tag).then_some(data)
    } else {
        let mut block = [0; 16];
        block[..12].copy_from_slice(&nonce);
        aes.ctr(block, &mut data);
        Some(data)
    }
}

#[test]
fn the_reference_decrypts_encrypted_packets() {
    for cipher in CIPHERS {
        let mut function = encrypter(cipher);
        for (count, len) in (0..).zip([0, 1, 15, 16, 17, 100, 1400]) {
            for (count, frame) in (2 * count..).zip([build::udp_v4(len), build::udp_v6(len)]) {
                let out = run(&mut *function, &frame).unwrap();
                assert_valid(&out);
                let opened = decrypt(cipher, payload_of(&out), count);
                assert_eq!(opened, Some(build::payload(len)), "{cipher}, {len} bytes");
            }
        }
    }
}

#[test]
fn each_encrypter_starts_a_new_session() {
    let trailer = |frame: &[u8]| frame[frame.len() - 40..frame.len() - 24].to_vec();
    let frame = build::udp_v4(64);
    let [first, second] =
        [(); 2].map(|()| run(&mut *encrypter(Cipher::Aes128Gcm), &frame).unwrap());
    assert_ne!(trailer(&first), trailer(&second));
    assert_ne!(first[42..106], second[42..106]);
}
