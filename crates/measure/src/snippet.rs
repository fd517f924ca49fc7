//! Functions as chain files write them, to be run without a chain.

use std::collections::BTreeMap;

use myelin_spec::{FunctionConfig, Source};

use crate::Error;

/// The configuration that `kind: ..., config: { ... }` is, with the files that it names.
///
/// # Errors
/// [`Error::Snippet`] with what is wrong with it.
pub fn config(function: &str, files: &BTreeMap<String, String>) -> Result<FunctionConfig, Error> {
    let text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: measured }}\nspec: {{ match: {{}}, functions: [ {{ name: f, {function} }} ] }}"
    );
    let chains = myelin_spec::parse(&text, &Source::new("measured"), files)
        .map_err(|errors| Error::Snippet(errors.to_string()))?;
    let function = chains.into_iter().flat_map(|chain| chain.functions).next();
    function
        .map(|function| function.config)
        .ok_or_else(|| Error::Snippet("no function".to_owned()))
}
