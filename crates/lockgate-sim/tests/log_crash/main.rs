//! The local log on the faulty disk: crashes at every point, failing operations, damaged bytes.
//!
//! - `crashes`: scripted and seeded histories, the power cut at every change of the disk, each with
//!   many choices of what survives.
//! - `faults`: every operation fails once, in every way it can; space ends after every number of
//!   bytes.
//! - `damage`: every byte flipped, every sector zeroed, files cut, swapped, removed and made of
//!   noise; the loss is compared with what the format says it must be.
//!
//! - `descriptors`: no file can be opened for a while.
//! - `overlap`: appends, syncs and maintenance, one at every moment of the other.
//! - `ranges`: recovery from a snapshot, segments given back and used again.
//! - `space`: full disks.
//!
//! What must hold stands in `History::check` and `history::check_survivors`. Each of these mistakes
//! was made in the log by hand, and each was caught by the tests named (among others):
//!
//! | mistake | caught by |
//! |---|---|
//! | a sync answers without syncing the files | every test with a power cut |
//! | a sync does not sync the folder after a new segment | crashes, `space_ends_within_an_append` |
//! | a sync promises what was appended while it ran, or forgets it for the next one | overlap |
//! | a segment's new name is noted before the rename | overlap |
//! | after a failed sync the instance goes on | faults, `what_is_recovered_after_a_failed_sync_is_durable` |
//! | an epoch begins without its segment, or the segment's name, synced | crashes |
//! | the start mark is made before the header it points to is durable | crashes |
//! | a record or header names as durable what is not synced yet | crashes |
//! | damage in the middle is cut like a tail | damage |
//! | the tail is not cut when valid records follow it | crashes, damage |
//! | damage that reaches into the tail counts as damage only | `every_sector_zeroed`, `some_stretches_of_noise` |
//! | no look ahead for what proves that damage was durable | `every_byte_flipped` |
//! | that proof is cut away with the tail | `recovery_of_a_damaged_log_may_be_cut` |
//! | records lost at the end of a segment, or a missing segment, go unnoticed | damage |
//! | the generation of a record is not compared | `bytes_of_an_earlier_use_are_not_taken` |
//! | the position is not part of the checksum | `files_removed_swapped_and_duplicated` |
//! | survivors are not synced, or not written again before | crashes, `what_is_recovered_after_a_failed_sync_is_durable` |
//! | recovery finishes a trim on the word of a mark that is not durable yet | `a_kill_and_then_a_power_cut_in_the_recovery` |
//! | trim removes segments before the start mark is durable, or passes what is synced | crashes |
//! | a segment with damage is deleted at trim | damage |
//! | a reservation forgets record headers, or new segments | `a_reservation_counts_headers` |
//! | a preallocated file keeps the header of what it was | `a_preallocated_file_forgets_what_it_was` |
//! | a segment is blanked before its new name is durable | `recycling_that_is_cut_leaves_nothing_that_looks_damaged` |
//! | a segment is released before the start mark is durable, or past it | crashes, faults, ranges |
//! | what stands before a snapshot is judged, or cut | ranges |
//! | growth takes the reserve, or a snapshot all of it, or the reserve does not survive a power cut | space |
//! | growth goes on as soon as it just fits | `a_full_log_does_not_come_and_go` |
//! | an append that finds no room is not cut, or the cut not synced | faults |
//! | trim passes what is synced to a snapshot | `a_trim_goes_no_further_than_what_is_durable` |
//! | too many open files end the log, or an append needs another file | descriptors |
//! | what a refused append took away comes back | `what_was_refused_for_space_never_comes_back` |
//! | a segment begun again after that is not synced | `what_follows_something_that_was_taken_back_is_synced` |
//! | a reservation forgets what records leave empty | `a_reservation_counts_what_records_leave_empty` |
//! | a preallocated file in use by maintenance counts and is not waited for | `a_preallocated_file_in_the_hands_of_maintenance_is_waited_for` |
//! | what maintenance keeps ready is not synced | `what_maintenance_keeps_ready_survives_a_power_cut` |
//! | a sync or an append beside a failure is told as done | overlap |
//! | damage met by a reader only is deleted with its segment | `a_segment_in_which_a_reader_met_damage_is_kept` |
//! | pieces of a snapshot change places | `a_snapshot_knows_its_pieces` |
//! | guesses at records have no end | `guesses_at_large_records_come_to_an_end` |
//! | a newer format is taken for damage and changed | `a_newer_format_is_refused_and_left_alone` |
#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod crashes;
mod damage;
mod descriptors;
mod faults;
mod history;
mod overlap;
mod ranges;
mod shared_reserve;
mod sizes;
mod space;
