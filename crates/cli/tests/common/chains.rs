//! Chains that several test files deploy.

/// Two functions in the kernel.
pub(crate) const KERNEL: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @k }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }
  functions:
    - { name: fw, kind: firewall, config: { rules: [ { action: deny, source: 192.0.2.0/24 } ] } }
    - { name: fwd, kind: forward }
  sla: { latency: 50ms }
";

/// Five functions, alternately in the kernel and in user space.
pub(crate) const MIXED: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @m }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32 }
  functions:
    - { name: fw, kind: firewall, space: kernel }
    - { name: one, kind: xor, space: user, config: { key: 0x21 } }
    - { name: two, kind: forward, space: kernel }
    - { name: three, kind: xor, space: user, config: { key: 0x21 } }
    - { name: four, kind: forward, space: kernel }
  sla: { latency: 50ms }
";

/// A user-space function, between interfaces of any kind.
pub(crate) const USER: &str = "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: { name: @u }
spec:
  match: { protocol: udp, destination: 10.0.0.2/32 }
  functions:
    - { name: watch, kind: monitor, space: user }
";

/// Formats two chains in user space: `taken` on core `taken_core`, which the test takes away, and
/// `other` on core 0.
pub(crate) fn format_chains_on_two_cores(taken_core: usize, latency: &str) -> String {
    let chain = |name: &str, core: usize, latency: &str| {
        format!(
            "
apiVersion: myelin.dev/v1alpha1
kind: ServiceChain
metadata: {{ name: @{name} }}
spec:
  match: {{ protocol: udp, destination: 10.0.0.2/32, destinationPort: 9000 }}
  functions: [ {{ name: one, kind: forward, space: user }} ]
  worker: {{ cores: [{core}] }}
  sla: {{ rate: 1kpps, burst: 256, latency: {latency}, loss: 0.1%, enforce: policer }}
"
        )
    };
    format!(
        "{}---{}",
        chain("taken", taken_core, latency),
        chain("other", 0, "10s, percentile: 50")
    )
}
