//! What an engine does: accounts, and an order book with price and time priority. Only events change it, so two engines with the
//! same events have the same state.

use std::collections::{BTreeMap, BTreeSet};

use lockgate::sequencer::ledger::EventHash;
use serde::{Deserialize, Serialize};

/// Whom money and shares come from and go to: its balances may be below zero.
pub(crate) const BANK: u32 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Asset {
    Money,
    Shares,
}

/// What is in the body of a message.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Command {
    Order {
        id: String,
        user: u32,
        buys: bool,
        price: i64,
        quantity: i64,
    },
    Cancel {
        order: String,
        user: u32,
    },
    Transfer {
        id: String,
        from: u32,
        to: u32,
        asset: Asset,
        amount: i64,
    },
}

/// What a user has of an asset: `held` is in orders.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Balance {
    free: i64,
    held: i64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Account {
    money: Balance,
    shares: Balance,
}

impl Account {
    fn of(&mut self, asset: Asset) -> &mut Balance {
        match asset {
            Asset::Money => &mut self.money,
            Asset::Shares => &mut self.shares,
        }
    }
}

/// An order that waits in the book.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Open {
    id: String,
    user: u32,
    buys: bool,
    price: i64,
    quantity: i64,
}

/// All of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Market {
    accounts: BTreeMap<u32, Account>,
    /// By the number of the event that has brought them.
    open: BTreeMap<u64, Open>,
    /// The numbers of orders by their ids, and by their prices.
    numbers: BTreeMap<String, u64>,
    bids: BTreeMap<i64, BTreeSet<u64>>,
    asks: BTreeMap<i64, BTreeSet<u64>>,
    /// How often each transfer was applied; 1, if the ledger does what it says.
    pub(crate) transfers: BTreeMap<String, u32>,
    trades: u64,
    refused: u64,
}

impl Market {
    /// Applies the event of that number.
    pub(crate) fn apply(&mut self, number: u64, command: Command) {
        match command {
            Command::Transfer {
                id,
                from,
                to,
                asset,
                amount,
            } => {
                *self.transfers.entry(id).or_default() += 1;
                let available = self.balance(from, asset).free;
                if from != BANK && available < amount {
                    self.refused += 1;
                    return;
                }
                self.balance(from, asset).free -= amount;
                self.balance(to, asset).free += amount;
            }
            Command::Order {
                id,
                user,
                buys,
                price,
                quantity,
            } => {
                let (asset, cost) = cost(buys, price, quantity);
                let balance = self.balance(user, asset);
                if balance.free < cost {
                    self.refused += 1;
                    return;
                }
                balance.free -= cost;
                balance.held += cost;
                self.trade(
                    number,
                    Open {
                        id,
                        user,
                        buys,
                        price,
                        quantity,
                    },
                );
            }
            Command::Cancel { order, user } => {
                let number = self.numbers.get(&order).copied();
                let mine = number.filter(|number| self.open[number].user == user);
                let Some(number) = mine else {
                    self.refused += 1;
                    return;
                };
                let (asset, left) = {
                    let open = &self.open[&number];
                    cost(open.buys, open.price, open.quantity)
                };
                self.close(number);
                let balance = self.balance(user, asset);
                balance.held -= left;
                balance.free += left;
            }
        }
    }

    fn balance(&mut self, user: u32, asset: Asset) -> &mut Balance {
        self.accounts.entry(user).or_default().of(asset)
    }

    fn book(&mut self, buys: bool) -> &mut BTreeMap<i64, BTreeSet<u64>> {
        match buys {
            true => &mut self.bids,
            false => &mut self.asks,
        }
    }

    fn close(&mut self, number: u64) {
        let Some(open) = self.open.remove(&number) else {
            return;
        };
        self.numbers.remove(&open.id);
        let book = self.book(open.buys);
        if let Some(level) = book.get_mut(&open.price) {
            level.remove(&number);
            if level.is_empty() {
                book.remove(&open.price);
            }
        }
    }

    /// The order that a new one trades with: of the best price, the oldest.
    fn best(&self, taker: &Open) -> Option<u64> {
        let level = match taker.buys {
            true => self.asks.range(..=taker.price).next(),
            false => self.bids.range(taker.price..).next_back(),
        };
        level?.1.first().copied()
    }

    /// Trades with what fits, the best price first, then the oldest; what is left waits.
    fn trade(&mut self, number: u64, mut taker: Open) {
        while taker.quantity > 0 {
            let Some(at) = self.best(&taker) else {
                break;
            };
            let maker = self.open[&at].clone();
            let quantity = maker.quantity.min(taker.quantity);
            let (buyer, seller) = match taker.buys {
                true => (&taker, &maker),
                false => (&maker, &taker),
            };
            let (paid, held) = (maker.price * quantity, buyer.price * quantity);
            let (buyer, seller) = (buyer.user, seller.user);
            let money = self.balance(buyer, Asset::Money);
            money.held -= held;
            money.free += held - paid;
            self.balance(seller, Asset::Money).free += paid;
            self.balance(seller, Asset::Shares).held -= quantity;
            self.balance(buyer, Asset::Shares).free += quantity;
            self.trades += 1;
            taker.quantity -= quantity;
            match maker.quantity == quantity {
                true => self.close(at),
                false => {
                    self.open.entry(at).and_modify(|it| it.quantity -= quantity);
                }
            }
        }
        if taker.quantity > 0 {
            self.numbers.insert(taker.id.clone(), number);
            let level = self.book(taker.buys).entry(taker.price).or_default();
            level.insert(number);
            self.open.insert(number, taker);
        }
    }

    /// Whether no money and no share was made or lost, and what is held is what the orders need.
    pub(crate) fn is_conserved(&self) -> bool {
        let sum = |of: fn(&Account) -> i64| self.accounts.values().map(of).sum::<i64>();
        let needed = |buys| {
            let open = self.open.values().filter(|open| open.buys == buys);
            open.map(|open| cost(open.buys, open.price, open.quantity).1)
                .sum::<i64>()
        };
        sum(|account| account.money.free + account.money.held) == 0
            && sum(|account| account.shares.free + account.shares.held) == 0
            && sum(|account| account.money.held) == needed(true)
            && sum(|account| account.shares.held) == needed(false)
    }

    pub(crate) fn trades(&self) -> u64 {
        self.trades
    }

    /// Of all of it: everything in it is in a fixed order.
    pub(crate) fn hash(&self) -> anyhow::Result<EventHash> {
        Ok(EventHash::START.next(&serde_json::to_vec(self)?))
    }
}

/// What an order holds back.
fn cost(buys: bool, price: i64, quantity: i64) -> (Asset, i64) {
    match buys {
        true => (Asset::Money, price * quantity),
        false => (Asset::Shares, quantity),
    }
}
