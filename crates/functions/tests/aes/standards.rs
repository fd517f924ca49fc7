//! Compares the reference with the test vectors of the standards.

use super::plain_aes::PlainAes;

fn hex(digits: &str) -> Vec<u8> {
    let digits: String = digits.split_whitespace().collect();
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn block_cipher_matches_fips_197_appendix_c() {
    let plain = hex("00112233445566778899aabbccddeeff").try_into().unwrap();
    let key: Vec<u8> = (0..32).collect();
    for (key, expected) in [
        (&key[..16], "69c4e0d86a7b0430d8cdb78070b4c55a"),
        (&key[..], "8ea2b7ca516745bfeafc49904b496089"),
    ] {
        assert_eq!(PlainAes::new(key).encrypt(plain)[..], hex(expected));
    }
}

#[test]
fn ctr_matches_sp_800_38a_f_5() {
    let plain = "6bc1bee22e409f96e93d7e117393172a ae2d8a571e03ac9c9eb76fac45af8e51
                 30c81c46a35ce411e5fbc1191a0a52ef f69f2445df4f9b17ad2b417be66c3710";
    for (key, expected) in [
        (
            "2b7e151628aed2a6abf7158809cf4f3c",
            "874d6191b620e3261bef6864990db6ce 9806f66b7970fdff8617187bb9fffdff
             5ae4df3edbd5d35e5b4f09020db03eab 1e031dda2fbe03d1792170a0f3009cee",
        ),
        (
            "603deb1015ca71be2b73aef0857d7781 1f352c073b6108d72d9810a30914dff4",
            "601ec313775789a5b7a7f504bbf3d228 f443e3ca4d62b59aca84e990cacaf5c5
             2b0930daa23de94ce87017ba2d84988d dfc9c58db67aada613c2dd08457941a6",
        ),
    ] {
        let mut data = hex(plain);
        let counter = hex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff");
        PlainAes::new(&hex(key)).ctr(counter.try_into().unwrap(), &mut data);
        assert_eq!(data, hex(expected));
    }
}

/// Test cases 4 and 16 of the proposal to NIST (McGrew and Viega, "The Galois/Counter Mode of
/// Operation", appendix B).
#[test]
fn gcm_with_additional_data_matches_the_proposal_to_nist() {
    let plain = "d9313225f88406e5a55909c5aff5269a 86a7a9531534f7da2e4c303d8a318a72
                 1c3c0c95956809532fcf0e2449a6b525 b16aedf5aa0de657ba637b39";
    let key = "feffe9928665731c6d6a8f9467308308";
    for (key, expected, tag) in [
        (
            key.to_owned(),
            "42831ec2217774244b7221b784d0d49c e3aa212f2c02a4e035c17e2329aca12e
             21d514b25466931c7d8f6a5aac84aa05 1ba30b396a0aac973d58e091",
            "5bc94fbc3221a5db94fae95ae7121a47",
        ),
        (
            key.repeat(2),
            "522dc1f099567d07f47f37a32a84427d 643a8cdcbfe5c0c97598a2bd2555d1aa
             8cb08e48590dbb3da7b08b1056828838 c5f61e6393ba7a0abcc9f662",
            "76fc6ece0f4e1768cddf8853bb2d551b",
        ),
    ] {
        let mut data = hex(plain);
        let nonce = hex("cafebabefacedbaddecaf888").try_into().unwrap();
        let aad = hex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
        let found = PlainAes::new(&hex(&key)).gcm(nonce, &aad, &mut data);
        assert_eq!(data, hex(expected));
        assert_eq!(found[..], hex(tag));
    }
}
