//! Suggests the known word for a misspelt word, or for the word of another tool.

/// Words of the chain file, each with the words that other tools use instead (without `-` and `_`,
/// in lower case).
const SYNONYMS: &[(&str, &str)] = &[
    ("rate", "bandwidth throughput speed bitrate pps bps"),
    ("latency", "delay maxdelay maxlatency deadline onewaydelay"),
    ("roundTrip", "rtt roundtriptime"),
    ("burst", "burstsize bucket"),
    ("loss", "packetloss lossrate maxloss"),
    ("match", "filter selector classifier traffic flow flows"),
    ("functions", "chain services steps vnfs nfs"),
    ("sla", "slo contract qos"),
    ("onFailure", "failure onerror failurepolicy fallback"),
    ("ports", "interfaces nics links devices"),
    ("namespace", "owner tenant"),
    ("source", "src from srcip saddr"),
    ("destination", "dst dest to dstip daddr"),
    ("sourcePort", "sport srcport"),
    ("destinationPort", "dport dstport port"),
    ("protocol", "proto"),
    ("kind", "type"),
    ("config", "params parameters options settings args"),
    ("space", "placement location where"),
    ("limits", "resources"),
    ("cpu", "cores"),
    ("memory", "mem ram"),
    ("cores", "core cpu cpus cpuset"),
    ("batch", "burst"),
    ("ingress", "in input from"),
    ("egress", "out output to"),
    ("keyFile", "key secret"),
    ("rules", "acl entries"),
    ("action", "verdict then target"),
    ("backends", "servers endpoints targets"),
    ("mac", "nexthop gateway via"),
    ("prefix", "network cidr destination"),
    ("command", "cmd exec program"),
    ("environment", "env"),
    ("patterns", "signatures"),
    ("true", "yes on y"),
    ("false", "no off n"),
    ("allow", "accept permit pass"),
    ("deny", "drop reject block discard"),
    ("pass", "allow accept ignore continue"),
    ("drop", "deny reject block discard"),
    ("compact", "runtocompletion"),
    ("kernel", "ebpf xdp"),
    ("user", "dpdk"),
    ("sleep", "block interrupt"),
    ("spin", "poll busy"),
    ("tcx", "tc"),
    ("firewall", "acl filter iptables nftables"),
    ("nat", "snat napt masquerade"),
    ("load-balancer", "lb balancer"),
    ("router", "route l3fwd"),
    ("forward", "l2fwd passthrough noop"),
    ("monitor", "counter netflow"),
    ("flow-tracker", "conntrack"),
    ("dpi", "ids ips snort suricata"),
    ("external", "container docker vnf program"),
    ("aes-encrypt", "aes encrypt encryption"),
    ("aes-decrypt", "decrypt decryption"),
    ("compress", "compression lz4 zstd"),
    ("rlnc-encode", "rlnc fec encode encoder"),
    ("rlnc-decode", "decode decoder"),
    ("lossy-link", "netem"),
];

/// Returns the candidate for which other tools use `word`.
pub fn synonym<'c>(word: &str, candidates: &[&'c str]) -> Option<&'c str> {
    let word = normalize(word);
    let is_meant = |candidate: &str| {
        let mut known = SYNONYMS.iter().filter(|(name, _)| *name == candidate);
        known.any(|(_, words)| words.split(' ').any(|other| other == word))
    };
    candidates
        .iter()
        .copied()
        .find(|candidate| is_meant(candidate))
}

/// Returns the candidate that `word` most likely means: a synonym, else the nearest spelling.
pub fn nearest<'c>(word: &str, candidates: &[&'c str]) -> Option<&'c str> {
    // No candidate is longer. This limits the time for long words of a file.
    const LONGEST: usize = 40;
    if word.len() > LONGEST {
        return None;
    }
    let misspelt = normalize(word);
    let nearest = candidates
        .iter()
        .map(|candidate| (edit_distance(&misspelt, &normalize(candidate)), *candidate))
        .min()
        .filter(|(distance, _)| *distance <= 1.max(misspelt.chars().count() / 3))
        .map(|(_, candidate)| candidate);
    synonym(word, candidates).or(nearest)
}

fn normalize(text: &str) -> String {
    text.replace(['-', '_', ' '], "").to_lowercase()
}

/// Returns the number of edits between two words: insert, delete, replace, swap adjacent letters. A
/// word and its prefix (`userspace`, `user`) are one edit apart.
fn edit_distance(a: &str, b: &str) -> usize {
    const SHORTEST_PREFIX: usize = 3;
    let shorter = a.len().min(b.len());
    let is_prefix = shorter >= SHORTEST_PREFIX && (a.starts_with(b) || b.starts_with(a));
    if is_prefix && a != b {
        1
    } else {
        strsim::osa_distance(a, b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_word_gives_the_nearest_candidate() {
        let keys = ["latency", "percentile", "rate", "rulesFile", "onFailure"];
        assert_eq!(nearest("latancy", &keys), Some("latency"));
        assert_eq!(nearest("percentil", &keys), Some("percentile"));
        assert_eq!(nearest("rules_file", &keys), Some("rulesFile"));
        assert_eq!(nearest("on-failure", &keys), Some("onFailure"));
        assert_eq!(nearest("userspace", &["kernel", "user"]), Some("user"));
        assert_eq!(nearest("raet", &keys), Some("rate"));
        let ports = ["destination", "destinationPort"];
        assert_eq!(nearest("destinationport", &ports), Some("destinationPort"));
    }

    #[test]
    fn word_of_another_tool_gives_its_synonym() {
        assert_eq!(nearest("bandwidth", &["latency", "rate"]), Some("rate"));
        assert_eq!(
            nearest("dst-port", &["sourcePort", "destinationPort"]),
            Some("destinationPort")
        );
        assert_eq!(nearest("drop", &["allow", "deny"]), Some("deny"));
        assert_eq!(nearest("bandwidth", &["latency"]), None);
    }

    #[test]
    fn distant_word_gives_nothing() {
        assert_eq!(nearest("color", &["latency", "rate"]), None);
        assert_eq!(nearest(&"x".repeat(10_000), &["latency"]), None);
        assert_eq!(nearest("", &["latency"]), None);
    }
}
