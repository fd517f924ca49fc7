//! Which spaces each function may be placed in.

use myelin_spec::catalogue::{Class, Kind};
use myelin_spec::{Classify, FunctionSpec, Space};

/// CALVIN's rule (section III-B): elementary and basic functions belong into the kernel, advanced ones into user space.
/// A kind that does not exist where its class belongs goes where it exists.
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

/// The one space that `function` must be placed in, by its pin, what it asks for, or the rule; `None` leaves the choice to the costs.
pub(crate) fn required(function: &FunctionSpec, classify: Classify) -> Option<Space> {
    function.required_space().or_else(|| match classify {
        // Both of a pair must come to the same answer, each in its own chain.
        _ if function.paired => beside_its_partner(function),
        Classify::Calvin => by_class(function.kind()),
        Classify::Cost => None,
    })
}

/// Where a function that shares its state with one of the reverse chain stands: in the kernel, to which every hook and every mapping leads.
fn beside_its_partner(function: &FunctionSpec) -> Option<Space> {
    function.kind().spaces().next()
}

#[cfg(test)]
mod tests {
    use myelin_spec::{FIREWALL, FORWARD, XOR};

    use super::*;

    #[test]
    fn calvin_puts_light_work_into_the_kernel_and_heavy_work_into_user_space() {
        assert_eq!(by_class(&FORWARD), Some(Space::Kernel));
        assert_eq!(by_class(&FIREWALL), Some(Space::Kernel));
        let mut advanced = XOR.clone();
        advanced.class = Class::Advanced;
        assert_eq!(by_class(&advanced), Some(Space::User));
    }

    #[test]
    fn a_kind_goes_where_it_exists() {
        let mut basic_but_user_only = FIREWALL.clone();
        basic_but_user_only.kernel = None;
        assert_eq!(by_class(&basic_but_user_only), Some(Space::User));
        let mut advanced_but_kernel_only = XOR.clone();
        advanced_but_kernel_only.class = Class::Advanced;
        advanced_but_kernel_only.user = None;
        assert_eq!(by_class(&advanced_but_kernel_only), Some(Space::Kernel));
    }
}
