//! Checks JSON against the schemas of this repository. Supports the keywords of JSON Schema 2020-12 that they use;
//! `plain/schemas` refuses a schema with any other, because an ignored keyword checks nothing.

use std::fs;
use std::io::Write;

use serde_json::{Map, Value};

/// A schema of the repository.
pub(crate) fn schema(name: &str) -> Value {
    let path = super::repository().join(format!("schemas/{name}.json"));
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Fails if a document does not fit the named schema. `from` is the document's origin.
pub(crate) fn fits(name: &str, document: &Value, from: &str) {
    let faults = faults(&schema(name), document);
    assert!(faults.is_empty(), "{from} does not fit schemas/{name}.json:\n{}", faults.join("\n"));
    if PAGES.contains(&name) {
        let page = page(&document.to_string());
        assert!(page.contains("class=\"banner "), "{from}: {page:.400}");
    }
}

/// Schemas of the documents that `polyrail analyze --html` renders as a page.
const PAGES: [&str; 5] = ["bench", "mesh", "collective", "experiment", "sweep"];

/// Renders a document as a page.
pub(crate) fn page(document: &str) -> String {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(document.as_bytes()).unwrap();
    let path = file.path().to_str().unwrap();
    let output = super::succeeded(super::run(&["analyze", path, "--html", "-"]));
    String::from_utf8(output.stdout).unwrap()
}

/// Places where a document breaks a schema, and how; at most the first 10.
pub(crate) fn faults(schema: &Value, document: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    Schema { root: schema }.check(schema, document, "", &mut faults);
    faults.truncate(10);
    faults
}

/// A schema with the definitions that it refers to.
struct Schema<'a> {
    root: &'a Value,
}

impl Schema<'_> {
    fn target(&self, reference: &Value) -> Option<&Value> {
        let name = reference.as_str()?.strip_prefix("#/$defs/")?;
        self.root["$defs"].get(name)
    }

    fn check(&self, schema: &Value, document: &Value, at: &str, faults: &mut Vec<String>) {
        let Some(words) = schema.as_object() else {
            if schema == &Value::Bool(false) {
                faults.push(format!("{at} may not be there"));
            }
            return;
        };
        let mut fault = |what: String| faults.push(format!("{at}: {what}"));
        if let Some(kinds) = words.get("type")
            && !is_of(kinds, document)
        {
            return fault(format!("{document} is not of the type {kinds}"));
        }
        if let Some(constant) = words.get("const")
            && constant != document
        {
            fault(format!("{document} is not {constant}"));
        }
        if let (Some(least), Some(number)) = (number(words, "minimum"), document.as_f64())
            && number < least
        {
            fault(format!("{number} is below {least}"));
        }
        if let Some(list) = document.as_array() {
            let count = list.len() as f64;
            let is_within = number(words, "minItems").is_none_or(|least| count >= least)
                && number(words, "maxItems").is_none_or(|most| count <= most);
            if !is_within {
                fault(format!("has {count} items"));
            }
        }
        if let Some(target) = words.get("$ref").and_then(|reference| self.target(reference)) {
            self.check(target, document, at, faults);
        }
        for (word, is_any) in [("oneOf", false), ("anyOf", true)] {
            if let Some(variants) = words.get(word).and_then(Value::as_array) {
                self.check_variants(variants, is_any, document, at, faults);
            }
        }
        self.check_items(words, document, at, faults);
        self.check_properties(words, document, at, faults);
    }

    fn check_variants(
        &self,
        variants: &[Value],
        is_any: bool,
        document: &Value,
        at: &str,
        faults: &mut Vec<String>,
    ) {
        let tried: Vec<Vec<String>> = variants
            .iter()
            .map(|variant| {
                let mut own = Vec::new();
                self.check(variant, document, at, &mut own);
                own
            })
            .collect();
        match tried.iter().filter(|own| own.is_empty()).count() {
            1 => {}
            0 => {
                // The variant that was meant is most likely the one with the fewest faults.
                let nearest = tried.into_iter().min_by_key(Vec::len).unwrap_or_default();
                faults.push(format!(
                    "{at}: fits none of {} variants: {}",
                    variants.len(),
                    nearest.join("; ")
                ));
            }
            _ if is_any => {}
            count => faults.push(format!("{at}: fits {count} variants, and not one")),
        }
    }

    fn check_items(
        &self,
        words: &Map<String, Value>,
        document: &Value,
        at: &str,
        faults: &mut Vec<String>,
    ) {
        let Some(list) = document.as_array() else { return };
        let first = words.get("prefixItems").and_then(Value::as_array);
        for (place, item) in list.iter().enumerate() {
            let schema = first.and_then(|first| first.get(place)).or_else(|| words.get("items"));
            if let Some(schema) = schema {
                self.check(schema, item, &format!("{at}/{place}"), faults);
            }
        }
    }

    fn check_properties(
        &self,
        words: &Map<String, Value>,
        document: &Value,
        at: &str,
        faults: &mut Vec<String>,
    ) {
        let Some(fields) = document.as_object() else { return };
        let known = words.get("properties").and_then(Value::as_object);
        for (name, value) in fields {
            let inside = format!("{at}/{name}");
            match known
                .and_then(|known| known.get(name))
                .or_else(|| words.get("additionalProperties"))
            {
                Some(Value::Bool(false)) => faults.push(format!("{inside} is not in the schema")),
                Some(schema) => self.check(schema, value, &inside, faults),
                None => {}
            }
        }
        let required = words.get("required").and_then(Value::as_array);
        for name in required.into_iter().flatten().filter_map(Value::as_str) {
            if !fields.contains_key(name) {
                faults.push(format!("{at} lacks {name}"));
            }
        }
    }
}

fn number(words: &Map<String, Value>, word: &str) -> Option<f64> {
    words.get(word).and_then(Value::as_f64)
}

fn is_of(kinds: &Value, document: &Value) -> bool {
    let is = |kind: &Value| match kind.as_str().unwrap_or_default() {
        "array" => document.is_array(),
        "boolean" => document.is_boolean(),
        "integer" => document.is_i64() || document.is_u64(),
        "null" => document.is_null(),
        "number" => document.is_number(),
        "object" => document.is_object(),
        "string" => document.is_string(),
        _ => false,
    };
    match kinds {
        Value::Array(kinds) => kinds.iter().any(is),
        kind => is(kind),
    }
}
