//! The bounds of a machine.

use lockgate_core::Level;

/// Bounds of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineLimits {
    /// The most queues. Each costs about 1 KiB of memory. Default: 100,000.
    pub queues_max: u32,
    /// The most messages in all queues together, including purged ones that are not freed yet. At
    /// most 4 × 10^9, the default.
    pub messages_max: u32,
    /// The highest durability level that the log reaches. Default: [`Level::Disk`].
    pub log_level: Level,
    /// How many low bits of a position are its place within its range of the log, see
    /// [`LogCapabilities::range_bits`](lockgate_core::LogCapabilities::range_bits). 0 to 63. Default: 32.
    pub range_bits: u32,
    /// How many bytes the failures of all messages may take. Where they take more, those that come are
    /// counted and their reasons left out. Default: 256 MiB.
    pub failure_bytes_max: u64,
    /// How many bytes all records and states of keys may take: their names and values, and 256 bytes for each. Where
    /// they would take more, writes are refused. Default: 256 MiB.
    pub record_bytes_max: u64,
    /// How many of these bytes the states of keys may take, so that they leave some for records, which elections need:
    /// three quarters of them at most, whatever this says. Default: 192 MiB.
    pub state_bytes_max: u64,
    /// How many keys may owe something under a rate or a gap of each key, or be held. Each costs up to
    /// [`OWING_KEY_BYTES`](Self::OWING_KEY_BYTES) of memory, and the bytes that a name has above 100 beside that. While
    /// there are so many, a lease of a key that would be one more waits as under a limit of its queue, and a hold of such
    /// a key is refused. Default: 10,000,000.
    pub owing_keys_max: u64,
    /// The most ledgers, including deleted ones that are not freed yet. Each costs about 1 KiB of memory. Default: 10,000.
    pub ledgers_max: u32,
    /// Whether there is an index on disk beside the log, for unique ids that are remembered for ever. Default: no.
    pub unique_id_index: bool,
    /// How many bytes the unique ids, inputs and readers of all ledgers may take: 64 for a unique id, and 128 and its
    /// name for each of the others. Where they would take more, appends are refused, and also where one ledger would take more
    /// than three times what is left: so none fills it, and the next one has some. An append that forgets as much as it adds
    /// is never refused for that. When they take half of it, unique ids leave memory for the index, if there is one. Default:
    /// 1 GiB.
    pub ledger_bytes_max: u64,
    /// The most exchanges. Each costs about 1 KiB of memory. Default: 10,000.
    pub exchanges_max: u32,
    /// The most bindings of all exchanges, including those of deleted queues and exchanges that are not freed yet.
    /// Default: 1,000,000.
    pub bindings_max: u32,
    /// How many bytes all bindings, and the notes of exchanges, may take. A binding: 768, twice its pattern, 128 for each word
    /// of a topic and for each header, and what its filter takes of memory, which is 2 to 25 times its text. Where they would
    /// take more, binds and notes are refused. Default: 1 GiB.
    pub binding_bytes_max: u64,
    /// The most schedules. Default: 100,000.
    pub schedules_max: u32,
    /// How many bytes all schedules may take: 640 for each, its texts and its message, and 96 for each header. Default: 256 MiB.
    pub schedule_bytes_max: u64,
}

impl MachineLimits {
    /// The most memory of a key that owes something or is held, in bytes, with a name of up to 100 bytes: while a table
    /// grows. Mostly it is half of that. A key may have 1,024 bytes; those above 100 count beside this.
    pub const OWING_KEY_BYTES: u64 = 300;

    /// What the states of keys may take, see [`state_bytes_max`](Self::state_bytes_max).
    pub(super) fn key_state_bytes_max(&self) -> u64 {
        self.state_bytes_max.min(self.record_bytes_max / 4 * 3)
    }
}

impl Default for MachineLimits {
    fn default() -> Self {
        Self {
            queues_max: 100_000,
            messages_max: 4_000_000_000,
            log_level: Level::Disk,
            range_bits: 32,
            failure_bytes_max: 256 << 20,
            record_bytes_max: 256 << 20,
            state_bytes_max: 192 << 20,
            owing_keys_max: 10_000_000,
            ledgers_max: 10_000,
            unique_id_index: false,
            ledger_bytes_max: 1 << 30,
            exchanges_max: 10_000,
            bindings_max: 1_000_000,
            binding_bytes_max: 1 << 30,
            schedules_max: 100_000,
            schedule_bytes_max: 256 << 20,
        }
    }
}
