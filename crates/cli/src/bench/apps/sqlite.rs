//! SQLite under a load of TPC-C's kind: new orders and payments, each a transaction of its own.

use std::ffi::OsStr;
use std::fmt::Write;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::side::{Running, Side, plainly};
use super::{Load, Ran, Random, Ready, Room};
use crate::failure::said;
use crate::run;

/// How transactions are made safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Journal {
    /// The old pages go to a file that is made and removed for each transaction.
    Rollback,
    /// The new pages go to the end of a log.
    WriteAhead,
}

const DISTRICTS: u64 = 10;
const CUSTOMERS: u64 = 30;
const ITEMS: u64 = 2000;

/// Everything that the transactions change, added up.
const SUMMARY: &str = "PRAGMA integrity_check;
    SELECT count(*), sum(lines) FROM orders;
    SELECT count(*), sum(quantity), sum(amount) FROM order_line;
    SELECT sum(quantity), sum(ordered) FROM stock;
    SELECT count(*), sum(amount) FROM history;
    SELECT sum(balance) FROM customer; SELECT sum(next_order), sum(paid) FROM district;
    SELECT sum(paid) FROM warehouse;";

/// The load.
pub(super) struct Sqlite {
    journal: Journal,
    transactions: usize,
    template: PathBuf,
    script: PathBuf,
}

impl Sqlite {
    /// With this journal.
    pub(super) fn new(journal: Journal) -> Self {
        Self {
            journal,
            transactions: 0,
            template: PathBuf::new(),
            script: PathBuf::new(),
        }
    }
}

impl Load for Sqlite {
    fn name(&self) -> &'static str {
        match self.journal {
            Journal::Rollback => "sqlite, rollback journal",
            Journal::WriteAhead => "sqlite, write-ahead log",
        }
    }

    fn rows(&self) -> &'static [&'static str] {
        &["transaction"]
    }

    fn waits(&self) -> bool {
        true
    }

    fn prepare(&mut self, room: &Room) -> Result<Ready, String> {
        if !run::is_installed("sqlite3") {
            return Ok(Ready::Missing("package sqlite3"));
        }
        self.transactions = room.operations(4, 60, 4000);
        let (journal, file) = match self.journal {
            Journal::Rollback => ("delete", "rollback"),
            Journal::WriteAhead => ("wal", "wal"),
        };
        self.template = room.path.join(format!("{file}.db"));
        self.script = room.path.join(format!("{file}.sql"));
        let make = room.path.join("make.sql");
        fs::write(&make, schema(journal)).map_err(|e| said(&e))?;
        fs::write(&self.script, transactions(self.transactions)).map_err(|e| said(&e))?;
        let read = format!(".read {}", make.display());
        let arguments = [
            "-batch".as_ref(),
            "-bail".as_ref(),
            self.template.as_os_str(),
            read.as_ref(),
        ];
        plainly("sqlite3", &arguments, &room.path)?;
        Ok(Ready::Yes)
    }

    fn run(&self, side: &Side, work: &Path) -> Result<Ran, String> {
        let database = work.join("tpcc.db");
        fs::copy(&self.template, &database).map_err(|e| said(&e))?;
        let mut command = side.command("sqlite3", work);
        command.args(["-batch", "-bail", "tpcc.db"]);
        command.stdin(File::open(&self.script).map_err(|e| said(&e))?);
        let begun = Instant::now();
        Running::start(&mut command, work.join("sqlite.log"))?.wait()?;
        let took = begun.elapsed().as_nanos() as f64;
        let arguments = ["-batch", "tpcc.db", SUMMARY].map(OsStr::new);
        let left = plainly("sqlite3", &arguments, work)?;
        if !left.starts_with("ok\n") {
            return Err(format!("the database is damaged: {left}"));
        }
        Ok(Ran {
            times: vec![took / self.transactions as f64],
            left,
        })
    }
}

/// The tables of one warehouse, filled.
fn schema(journal: &str) -> String {
    format!(
        "PRAGMA journal_mode={journal};
BEGIN;
CREATE TABLE warehouse(id INTEGER PRIMARY KEY, name TEXT, paid INTEGER);
CREATE TABLE district(id INTEGER PRIMARY KEY, name TEXT, next_order INTEGER, paid INTEGER);
CREATE TABLE customer(id INTEGER PRIMARY KEY, district INTEGER, name TEXT, balance INTEGER, data TEXT);
CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price INTEGER);
CREATE TABLE stock(item INTEGER PRIMARY KEY, quantity INTEGER, ordered INTEGER, data TEXT);
CREATE TABLE orders(district INTEGER, number INTEGER, customer INTEGER, lines INTEGER,
    PRIMARY KEY(district, number)) WITHOUT ROWID;
CREATE TABLE order_line(district INTEGER, number INTEGER, line INTEGER, item INTEGER, quantity INTEGER,
    amount INTEGER, PRIMARY KEY(district, number, line)) WITHOUT ROWID;
CREATE TABLE history(customer INTEGER, amount INTEGER, data TEXT);
INSERT INTO warehouse VALUES(1, 'the one', 0);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < {DISTRICTS})
    INSERT INTO district SELECT i, 'district ' || i, 1, 0 FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < {people})
    INSERT INTO customer SELECT i, 1 + (i-1) / {CUSTOMERS}, 'customer ' || i, 0, printf('%.*c', 300, 'c') FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < {ITEMS})
    INSERT INTO item SELECT i, 'item ' || i, 100 + i % 900 FROM n;
INSERT INTO stock SELECT id, 100, 0, printf('%.*c', 200, 's') FROM item;
CREATE INDEX customer_name ON customer(district, name);
COMMIT;
",
        people = DISTRICTS * CUSTOMERS
    )
}

/// The same transactions for every side.
fn transactions(count: usize) -> String {
    let mut random = Random::default();
    let mut sql = String::from("PRAGMA synchronous=FULL;\n");
    for i in 0..count {
        if i % 2 == 0 {
            new_order(&mut sql, &mut random);
        } else {
            payment(&mut sql, &mut random);
        }
    }
    sql
}

fn new_order(sql: &mut String, random: &mut Random) {
    let district = 1 + random.below(DISTRICTS);
    let customer = (district - 1) * CUSTOMERS + 1 + random.below(CUSTOMERS);
    let lines = 5 + random.below(11);
    let number = format!("(SELECT next_order-1 FROM district WHERE id={district})");
    let _ = write!(
        sql,
        "BEGIN IMMEDIATE; SELECT name, balance FROM customer WHERE id={customer};
UPDATE district SET next_order=next_order+1 WHERE id={district};
INSERT INTO orders VALUES({district}, {number}, {customer}, {lines});\n"
    );
    for line in 1..=lines {
        let (item, quantity) = (1 + random.below(ITEMS), 1 + random.below(10));
        let _ = write!(
            sql,
            "UPDATE stock SET quantity=CASE WHEN quantity>{quantity}+10 THEN quantity-{quantity} \
             ELSE quantity-{quantity}+91 END, ordered=ordered+1 WHERE item={item};
INSERT INTO order_line SELECT {district}, {number}, {line}, {item}, {quantity}, {quantity}*price \
             FROM item WHERE id={item};\n"
        );
    }
    sql.push_str("COMMIT;\n");
}

fn payment(sql: &mut String, random: &mut Random) {
    let district = 1 + random.below(DISTRICTS);
    let customer = (district - 1) * CUSTOMERS + 1 + random.below(CUSTOMERS);
    let amount = 1 + random.below(5000);
    let _ = write!(
        sql,
        "BEGIN IMMEDIATE; UPDATE warehouse SET paid=paid+{amount};
UPDATE district SET paid=paid+{amount} WHERE id={district};
SELECT balance FROM customer WHERE district={district} AND name='customer {customer}';
UPDATE customer SET balance=balance-{amount} WHERE id={customer};
INSERT INTO history VALUES({customer}, {amount}, 'paid in {district}'); COMMIT;\n"
    );
}
