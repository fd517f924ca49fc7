//! Parses function configurations in the syntax of chain files, for functions without a chain.

use std::collections::BTreeMap;

use myelin_spec::{FunctionConfig, Source};

use crate::Error;

/// Parses `kind: ..., config: { ... }`. `files` has the contents of the files that the
/// configuration names.
///
/// # Errors
/// [`Error::FunctionConfig`] with the parser's message.
pub fn parse(function: &str, files: &BTreeMap<String, String>) -> Result<FunctionConfig, Error> {
    let text = format!(
        "apiVersion: myelin.dev/v1alpha1\nkind: ServiceChain\nmetadata: {{ name: measured }}\nspec: {{ match: {{}}, functions: [ {{ name: f, {function} }} ] }}"
    );
    let chains = myelin_spec::parse(&text, &Source::new("measured"), files)
        .map_err(|errors| Error::FunctionConfig(errors.to_string()))?;
    let function = chains.into_iter().flat_map(|chain| chain.functions).next();
    function
        .map(|function| function.config)
        .ok_or_else(|| Error::FunctionConfig("the text contains no function".to_owned()))
}
