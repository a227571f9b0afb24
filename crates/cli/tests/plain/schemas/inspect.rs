//! Finds faults of a schema itself.

use serde_json::Value;

/// Keywords that only inform people.
const REMARKS: &[&str] = &["$schema", "$id", "$defs", "title", "description"];

/// Unknown keywords, dead references, open objects, and properties without a description.
pub(crate) fn faults(root: &Value) -> Vec<String> {
    let inspection = Inspection { root };
    let mut faults = Vec::new();
    inspection.inspect(root, "", &mut faults);
    for (name, one) in root["$defs"].as_object().into_iter().flatten() {
        inspection.inspect(one, &format!("$defs/{name}"), &mut faults);
    }
    faults
}

struct Inspection<'a> {
    root: &'a Value,
}

impl Inspection<'_> {
    fn inspect(&self, schema: &Value, place: &str, faults: &mut Vec<String>) {
        let Some(words) = schema.as_object() else {
            return;
        };
        for (word, value) in words {
            let at = format!("{place}/{word}");
            match word.as_str() {
                "properties" => {
                    for (name, one) in value.as_object().into_iter().flatten() {
                        // Constants that tell variants apart explain themselves.
                        if one.get("description").is_none() && one.get("const").is_none() {
                            faults.push(format!("{at}/{name} has no description"));
                        }
                        self.inspect(one, &format!("{at}/{name}"), faults);
                    }
                }
                "oneOf" | "anyOf" | "prefixItems" => {
                    for one in value.as_array().into_iter().flatten() {
                        self.inspect(one, &at, faults);
                    }
                }
                "items" | "additionalProperties" => self.inspect(value, &at, faults),
                "$ref" if !self.has(value) => {
                    faults.push(format!("{at}: {value} does not exist"));
                }
                "type" | "const" | "required" | "minimum" | "minItems" | "maxItems" | "$ref" => {}
                other if REMARKS.contains(&other) => {}
                other => faults.push(format!("{place} has the unknown word {other}")),
            }
        }
        if words.get("type").is_some_and(|kind| kind == "object")
            && !words.contains_key("additionalProperties")
        {
            faults.push(format!("{place} is open: additionalProperties says what else may come"));
        }
    }

    fn has(&self, reference: &Value) -> bool {
        let name = reference.as_str().and_then(|text| text.strip_prefix("#/$defs/"));
        name.is_some_and(|name| self.root["$defs"].get(name).is_some())
    }
}
