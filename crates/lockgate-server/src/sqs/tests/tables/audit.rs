//! Checks that each error code that the server knows is in some row, is as AWS models it, and is in
//! the documentation; and that each code that AWS documents is given here or listed as never given.

use std::collections::BTreeSet;

use super::{Expected, all, codes, malformed};
use crate::sqs::error::{ErrorCode, Namespace};

/// Codes that no row can cause, and the tests that cause them.
const ELSEWHERE: [(ErrorCode, &str); 8] = [
    (
        ErrorCode::AccessDenied,
        "identity: what a key's grants do not cover",
    ),
    (
        ErrorCode::IncompleteSignature,
        "identity: a signature with a part missing",
    ),
    (ErrorCode::InvalidClientTokenId, "identity: an unknown key"),
    (
        ErrorCode::MissingAuthenticationToken,
        "identity: no signature",
    ),
    (ErrorCode::RequestExpired, "identity: another time"),
    (ErrorCode::SignatureDoesNotMatch, "identity: another secret"),
    (
        ErrorCode::InternalFailure,
        "the engine: storage that failed under a request",
    ),
    (
        ErrorCode::ServiceUnavailable,
        "messages: an engine that has stopped",
    ),
];

/// AWS's codes that are never given here: name, code in the older protocol, status. First the
/// service's own as in its model, then those that its reference lists for all services.
const NEVER: [(&str, &str, u16); 20] = [
    ("InvalidAddress", "InvalidAddress", 404),
    ("InvalidIdFormat", "InvalidIdFormat", 400),
    ("InvalidSecurity", "InvalidSecurity", 403),
    ("KmsAccessDenied", "KMS.AccessDeniedException", 400),
    ("KmsDisabled", "KMS.DisabledException", 400),
    ("KmsInvalidKeyUsage", "KMS.InvalidKeyUsageException", 400),
    ("KmsInvalidState", "KMS.InvalidStateException", 400),
    ("KmsNotFound", "KMS.NotFoundException", 400),
    ("KmsOptInRequired", "KMS.OptInRequired", 403),
    ("KmsThrottled", "KMS.ThrottlingException", 400),
    (
        "QueueDeletedRecently",
        "AWS.SimpleQueueService.QueueDeletedRecently",
        400,
    ),
    ("RequestThrottled", "RequestThrottled", 403),
    (
        "InvalidParameterCombination",
        "InvalidParameterCombination",
        400,
    ),
    ("InvalidQueryParameter", "InvalidQueryParameter", 400),
    ("MalformedQueryString", "MalformedQueryString", 404),
    ("MissingAction", "MissingAction", 400),
    ("NotAuthorized", "NotAuthorized", 400),
    ("OptInRequired", "OptInRequired", 403),
    ("ThrottlingException", "ThrottlingException", 400),
    ("ValidationError", "ValidationError", 400),
];

/// The errors of the service's model.
const MODELLED: [&str; 28] = [
    "BatchEntryIdsNotDistinct",
    "BatchRequestTooLong",
    "EmptyBatchRequest",
    "InvalidAddress",
    "InvalidAttributeName",
    "InvalidAttributeValue",
    "InvalidBatchEntryId",
    "InvalidIdFormat",
    "InvalidMessageContents",
    "InvalidSecurity",
    "KmsAccessDenied",
    "KmsDisabled",
    "KmsInvalidKeyUsage",
    "KmsInvalidState",
    "KmsNotFound",
    "KmsOptInRequired",
    "KmsThrottled",
    "MessageNotInflight",
    "OverLimit",
    "PurgeQueueInProgress",
    "QueueDeletedRecently",
    "QueueDoesNotExist",
    "QueueNameExists",
    "ReceiptHandleIsInvalid",
    "RequestThrottled",
    "ResourceNotFoundException",
    "TooManyEntriesInBatchRequest",
    "UnsupportedOperation",
];

#[test]
fn every_code_is_brought_about_and_is_aws_s() {
    let mut met: BTreeSet<&str> = malformed::codes().map(|code| code.legacy).collect();
    let mut entries = BTreeSet::new();
    for (_, rows) in all() {
        for row in &rows {
            match &row.in_json {
                Some(Expected::Refusal(code, _)) => {
                    met.insert(code.legacy);
                }
                Some(Expected::Answer(output)) => {
                    let failed = output["Failed"].as_array().into_iter().flatten();
                    entries.extend(
                        failed.filter_map(|entry| entry["Code"].as_str().map(str::to_owned)),
                    );
                }
                None => {}
            }
        }
    }
    met.extend(entries.iter().map(String::as_str));
    for &code in ErrorCode::ALL {
        let row = code.row();
        if ELSEWHERE.iter().any(|(elsewhere, _)| *elsewhere == code) {
            assert!(
                !met.contains(row.legacy),
                "{code:?} is in a table after all"
            );
            continue;
        }
        assert!(met.contains(row.legacy), "no row brings {code:?} about");
        let kind = format!("{}#{}", row.namespace.as_str(), row.name);
        let known = codes::ALL.iter().find(|known| known.legacy == row.legacy);
        let known = known.unwrap_or_else(|| panic!("{code:?} is not in the tables' list"));
        assert_eq!(
            (known.kind, known.status),
            (kind.as_str(), row.status),
            "{code:?}"
        );
    }
}

#[test]
fn every_error_of_the_service_s_model_is_given_or_said_never_to_be() {
    let given = ErrorCode::ALL
        .iter()
        .map(|code| code.row())
        .filter(|row| row.namespace == Namespace::Sqs)
        .map(|row| row.name);
    let never = NEVER[..12].iter().map(|(name, ..)| *name);
    let listed: BTreeSet<&str> = given.chain(never).collect();
    assert_eq!(listed, BTreeSet::from(MODELLED));
}

/// The lines of the documentation's two tables: code, modelled name, status.
fn documented(heading: &str) -> BTreeSet<(String, String, u16)> {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sqs.md")).unwrap();
    let (_, section) = page
        .split_once(&format!("\n### {heading}\n"))
        .expect(heading);
    section
        .lines()
        .take_while(|line| !line.starts_with('#'))
        .filter(|line| line.starts_with("| `"))
        .flat_map(|line| {
            let cells: Vec<&str> = line.split('|').map(|cell| cell.trim()).collect();
            let status = cells[3].parse().expect("a status");
            // A line may have several similar codes.
            let list = |cell: &str| {
                cell.split(", ")
                    .map(|code| code.trim_matches('`').to_owned())
                    .collect::<Vec<_>>()
            };
            let codes = list(cells[1]);
            let names = if cells[2] == "the same" {
                codes.clone()
            } else {
                list(cells[2])
            };
            assert_eq!(codes.len(), names.len(), "{line}");
            assert!(!cells[4].is_empty(), "{line}");
            codes
                .into_iter()
                .zip(names)
                .map(move |(code, name)| (code, name, status))
        })
        .collect()
}

#[test]
fn the_documentation_has_every_code_with_its_status() {
    let given = ErrorCode::ALL.iter().map(|code| code.row());
    let given: BTreeSet<_> = given
        .map(|row| (row.legacy.to_owned(), row.name.to_owned(), row.status))
        .collect();
    assert_eq!(documented("Codes that are given"), given);
    let never: BTreeSet<_> = NEVER
        .map(|(name, legacy, status)| (legacy.to_owned(), name.to_owned(), status))
        .into_iter()
        .collect();
    assert_eq!(documented("Codes that are never given"), never);
}
