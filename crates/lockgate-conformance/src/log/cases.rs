//! The cases. Each opens fresh storage; `true` means it was run to its end.

mod ownership;
mod reading;
mod records;
mod snapshots;
mod space;

use super::Case;

macro_rules! cases {
    ($($module:ident { $($name:ident),* $(,)? })*) => {
        /// All cases, in the order they run.
        pub const CASES: &[Case] = &[$($(
            Case { name: stringify!($name), run: $module::$name },
        )*)*];
    };
}

cases! {
    records {
        empty_storage_recovers_empty,
        capabilities_are_consistent,
        appended_records_read_back,
        a_record_is_found_by_its_number,
        who_follows_is_told_of_what_is_durable,
        records_come_back_in_order_after_a_kill,
        records_come_back_in_order_over_many_lives,
        place_says_where_append_puts_records,
        place_changes_nothing,
        an_empty_group_changes_nothing,
        one_group_may_be_larger_than_any_unit_of_storage,
        a_wrong_position_is_refused,
        a_record_that_is_too_large_is_refused,
        recovering_twice_gives_the_same,
        sync_covers_what_was_appended_before_it,
        synced_records_survive_a_power_cut,
        readers_and_syncs_go_on_beside_appends,
    }
    ownership {
        an_old_epoch_cannot_be_begun_again,
        an_epoch_without_records_is_remembered,
        an_epoch_survives_a_power_cut,
        a_deposed_owner_cannot_append,
        a_recovery_fences_before_it_reads,
        no_epoch_up_to_the_one_that_recovery_is_told_of_begins,
        of_two_that_recover_the_later_one_begins,
        a_deposed_owner_changes_nothing,
    }
    reading {
        nothing_is_read_where_no_record_starts,
        several_records_are_read_as_each_of_them,
        a_scan_visits_what_starts_within_its_bounds,
        numbers_are_dense_over_epochs,
        a_scan_ends_when_it_is_told_to,
        damage_is_told_apart_counted_and_passed_over,
        damage_is_told_while_the_log_is_in_use,
    }
    snapshots {
        a_snapshot_is_of_the_tail_at_which_it_began,
        snapshots_are_listed_newest_first_and_read_back,
        an_unfinished_snapshot_is_never_there,
        recovery_starts_at_a_snapshot,
        a_snapshot_survives_a_power_cut,
        a_damaged_snapshot_says_so,
    }
    space {
        trim_keeps_everything_from_its_position_on,
        trim_of_everything_keeps_epoch_and_order,
        a_range_is_released_only_behind_a_trim,
        a_released_range_is_gone_and_all_others_stay,
        a_reservation_that_cannot_be_met_changes_nothing,
        maintenance_changes_nothing_that_can_be_read,
    }
}
