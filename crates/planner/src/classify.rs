//! The spaces in which each function may run.

use myelin_spec::catalogue::{Class, Kind};
use myelin_spec::{Classify, FunctionSpec, Space};

/// Returns the space by CALVIN's rule (section III-B): elementary and basic functions run in the
/// kernel, advanced functions in user space. If the kind has no implementation in that space,
/// returns the other space.
pub fn by_class(kind: &Kind) -> Option<Space> {
    let rule = match kind.class {
        Class::Elementary | Class::Basic => Space::Kernel,
        Class::Advanced => Space::User,
    };
    let exists = kind.spaces().any(|space| space == rule);
    if exists {
        Some(rule)
    } else {
        kind.spaces().next()
    }
}

/// Returns the space in which `function` must run, by its `space` key, its sandbox, or the rule
/// `classify`; `None` if the costs decide.
pub(crate) fn required_space(function: &FunctionSpec, classify: Classify) -> Option<Space> {
    function.required_space().or_else(|| match classify {
        // Both functions of a pair must get the same space, each in its own chain.
        _ if function.paired => space_of_pair(function),
        Classify::Calvin => by_class(function.kind()),
        Classify::Cost => None,
    })
}

/// Returns the space of a function that shares its state with a function of the reverse chain. This
/// is the kernel if possible, because every hook and mapping supports kernel functions.
fn space_of_pair(function: &FunctionSpec) -> Option<Space> {
    function.kind().spaces().next()
}

#[cfg(test)]
mod tests {
    use myelin_spec::{FIREWALL, FORWARD, XOR};

    use super::*;

    #[test]
    fn calvin_places_basic_kinds_in_the_kernel_and_advanced_ones_in_user_space() {
        assert_eq!(by_class(&FORWARD), Some(Space::Kernel));
        assert_eq!(by_class(&FIREWALL), Some(Space::Kernel));
        let mut advanced = XOR.clone();
        advanced.class = Class::Advanced;
        assert_eq!(by_class(&advanced), Some(Space::User));
    }

    #[test]
    fn kind_runs_in_its_only_space() {
        let mut basic_but_user_only = FIREWALL.clone();
        basic_but_user_only.kernel = None;
        assert_eq!(by_class(&basic_but_user_only), Some(Space::User));
        let mut advanced_but_kernel_only = XOR.clone();
        advanced_but_kernel_only.class = Class::Advanced;
        advanced_but_kernel_only.user = None;
        assert_eq!(by_class(&advanced_but_kernel_only), Some(Space::Kernel));
    }
}
