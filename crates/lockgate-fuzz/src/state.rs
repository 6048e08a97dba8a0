//! Targets that make a machine's state: records and images.

use bytes::Bytes;
use lockgate_core::Position;
use lockgate_machine::{
    BatchDecoder, ImageLoader, Machine, MachineLimits, RecordBatch, decode_record, encode_record,
    read_message,
};

/// Records behind each other, each after its length (2 bytes).
///
/// What is decoded is encoded and decoded to the same; both decoders agree; both ways to fold give the
/// same state.
pub(crate) fn records(bytes: &[u8]) -> Result<(), String> {
    let mut one_by_one = Machine::new(MachineLimits::default());
    let mut at_once = Machine::new(MachineLimits::default());
    let mut decoder = BatchDecoder::new(&at_once);
    let mut errors = Vec::new();
    let mut rest = bytes;
    let mut at = Position(4096);
    while let Some((len, after)) = rest.split_at_checked(2) {
        let len = usize::from(u16::from_le_bytes([len[0], len[1]]));
        let (record, after) = after.split_at(len.min(after.len()));
        let record = Bytes::copy_from_slice(record);
        rest = after;
        let decoded = decode_record(&record);
        if let Ok(effects) = &decoded {
            let mut again = Vec::new();
            encode_record(effects, &mut again);
            assert_eq!(
                decode_record(&again.into()).as_ref(),
                Ok(effects),
                "decoded again"
            );
            for part in 0..=u16::try_from(effects.len()).unwrap_or(u16::MAX - 1) {
                let _no_message = read_message(&record, part);
            }
            one_by_one.fold(effects, at);
        }
        decoder.push(&record, at);
        errors.push(decoded.err());
        at = Position(at.0 + 44 + record.len() as u64);
    }
    let mut seen = errors.iter();
    at_once.fold_batch(&decoder.take(RecordBatch::default()), |_, record| {
        assert_eq!(
            seen.next().and_then(Option::as_ref),
            record.error,
            "a batch"
        );
    });
    assert_eq!(
        at_once.state_view(),
        one_by_one.state_view(),
        "folded at once and one by one"
    );
    match errors.into_iter().flatten().next() {
        Some(error) => Err(error.to_string()),
        None => Ok(()),
    }
}

/// One piece of an image. What is loaded is written and loaded to the same.
pub(crate) fn image(bytes: &[u8]) -> Result<(), String> {
    let mut machine = load(&[bytes.to_vec()])?;
    let mut again = load(&pieces(&mut machine)).expect("a loaded machine is loaded again");
    assert_eq!(again.state_view(), machine.state_view(), "loaded again");
    assert_eq!(pieces(&mut again), pieces(&mut machine), "written again");
    Ok(())
}

fn load(pieces: &[Vec<u8>]) -> Result<Machine, String> {
    let mut loader = ImageLoader::new(MachineLimits::default());
    for piece in pieces {
        loader.piece(piece).map_err(|error| error.to_string())?;
    }
    loader.finish_checked().map_err(|error| error.to_string())
}

fn pieces(machine: &mut Machine) -> Vec<Vec<u8>> {
    let mut frozen = machine.freeze();
    let mut pieces = Vec::new();
    let mut buffer = Vec::new();
    while let Some(piece) = frozen.next_piece(&mut buffer) {
        pieces.push(piece.to_vec());
    }
    pieces
}
