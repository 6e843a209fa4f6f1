//! Positions on the earth: sorted sets whose scores are positions.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use quorate_machine::{Access, Change, Current, Workspace, mutant};
use quorate_types::UnixMillis;

use crate::double::{double, parse_double};
use crate::geohash::{Position, Shape};
use crate::number::integer;
use crate::options::{SYNTAX, is_word};
use crate::sorted_set::{self, Additions, Entry, SortedSet, store_new};
use crate::string::{Outcome, key_functions};
use crate::{Args, Reply, lookup};

key_functions! {
    geoadd => |args, _, current| add(args, current);
    geodist => |args, _, current| {
        let unit = match args.len() {
            4 => 1.0,
            5 => unit(args.get(4))?,
            _ => return Err(SYNTAX),
        };
        let set = SortedSet::or_empty(current)?;
        let ends = [args.get(2), args.get(3)].map(|member| position_of(set, member));
        let distance = match ends {
            [Some(from), Some(to)] => distance(from.distance(to) / unit),
            _ => Reply::Null,
        };
        Ok((distance, Change::Keep))
    };
    geohash => |args, _, current| {
        let geohash = |position: Position| Reply::Bulk(position.geohash().to_vec().into());
        each(args, current, geohash, Reply::Null)
    };
    geopos => |args, _, current| each(args, current, coordinates, Reply::NullArray);
    georadius_ro => |args, _, current| radius_read(From::Coordinates, args, current);
    georadiusbymember_ro => |args, _, current| radius_read(From::Member, args, current);
    geosearch => |args, _, current| {
        let set = SortedSet::of(current)?;
        let query = Query::parse_search(args, 1, set)?;
        Ok((set.map_or(Reply::Array(vec![]), |set| query.answer(query.find(set))), Change::Keep))
    };
}

fn position_of(set: SortedSet<'_>, member: &[u8]) -> Option<Position> {
    set.find(member).map(Position::of_score)
}

/// Answers for each of the members that are named, and something else for those that aren't there.
fn each<'a>(
    args: Args<'a>,
    current: Current<'a>,
    answer: impl Fn(Position) -> Reply<'static>,
    absent: Reply<'static>,
) -> Outcome<'a> {
    let scores = sorted_set::scores(SortedSet::or_empty(current)?, args.iter().skip(2));
    let answer = |score: Option<f64>| {
        score.map_or(absent.clone(), |score| answer(Position::of_score(score)))
    };
    Ok((Reply::Array(scores.map(answer).collect()), Change::Keep))
}

fn coordinates(position: Position) -> Reply<'static> {
    Reply::Array(vec![Reply::Decimal(position.longitude), Reply::Decimal(position.latitude)])
}

/// A distance in the unit that was asked for.
fn distance(distance: f64) -> Reply<'static> {
    Reply::Bulk(format!("{distance:.4}").into_bytes().into())
}

/// The metres of a unit.
fn unit(word: &[u8]) -> Result<f64, Reply<'static>> {
    let units = [("m", 1.0), ("km", 1000.0), ("ft", 0.3048), ("mi", 1609.34)];
    let metres = units.iter().find(|(name, _)| is_word(word, name)).map(|(_, metres)| *metres);
    metres.ok_or(Reply::error("ERR unsupported unit provided. please use M, KM, FT, MI"))
}

/// A longitude and a latitude, which are the next words.
fn position<'a>(words: &mut impl Iterator<Item = &'a [u8]>) -> Result<Position, Reply<'static>> {
    let mut number = || words.next().ok_or(SYNTAX).and_then(double);
    let (longitude, latitude) = (number()?, number()?);
    Position::new(longitude, latitude).ok_or_else(|| {
        let text = format!("ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}");
        Reply::Error(text.into())
    })
}

/// `GEOADD key [NX | XX] [CH] longitude latitude member ...`: a `ZADD` whose scores are positions.
fn add<'a>(args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let (mut additions, mut words) = (Additions::default(), args.iter().skip(2));
    let is_option = |additions: &mut Additions, word| {
        let option = match () {
            () if is_word(word, "NX") => &mut additions.only_absent,
            () if is_word(word, "XX") => &mut additions.only_present,
            () if is_word(word, "CH") => &mut additions.counts_changes,
            () => return false,
        };
        *option = true;
        true
    };
    while words.clone().next().is_some_and(|word| is_option(&mut additions, word)) {
        words.next();
    }
    let count = words.clone().count();
    if count == 0 || !count.is_multiple_of(3) || additions.only_absent && additions.only_present {
        return Err(SYNTAX);
    }
    let mut entries = Vec::with_capacity(count / 3);
    while words.clone().next().is_some() {
        let score = position(&mut words)?.score();
        entries.push(Entry { score, member: words.next().ok_or(SYNTAX)? });
    }
    additions.add(&entries, current)
}

/// Where a search of the older commands begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum From {
    Coordinates,
    Member,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Ascending,
    Descending,
}

/// A search for members around a position.
#[derive(Clone, Debug, Default)]
struct Query<'a> {
    centre: Option<Position>,
    shape: Option<Shape>,
    /// The metres of the unit in which distances are answered.
    unit: f64,
    order: Option<Order>,
    count: Option<usize>,
    /// Whether any members will do, once they are enough.
    any: bool,
    with_distance: bool,
    with_score: bool,
    with_coordinates: bool,
    target: Option<&'a [u8]>,
    stores_distances: bool,
}

/// A member that a search found.
#[derive(Clone, Copy, Debug)]
struct Found<'a> {
    entry: Entry<'a>,
    position: Position,
    /// In metres.
    distance: f64,
}

impl<'a> Query<'a> {
    /// Reads the words of `GEORADIUS` and its relatives. An absent key has no member to begin at; then
    /// nothing is found, and only the options count.
    fn parse_radius(
        from: From,
        may_store: bool,
        args: Args<'a>,
        set: Option<SortedSet<'_>>,
    ) -> Result<Self, Reply<'static>> {
        let mut query = Self { unit: 1.0, ..Self::default() };
        let mut words = args.iter().skip(2);
        match from {
            From::Coordinates => query.centre = Some(position(&mut words)?),
            From::Member => query.begin_at(words.next().ok_or(SYNTAX)?, set)?,
        }
        if from == From::Member && set.is_none() {
            words.nth(1);
        } else {
            query.circle(&mut words)?;
        }
        while let Some(word) = words.next() {
            if query.common_option(word, &mut words)? {
                continue;
            }
            let stores_distances = is_word(word, "STOREDIST");
            let stores = may_store && (stores_distances || is_word(word, "STORE"));
            query.target = Some(words.next().filter(|_| stores).ok_or(SYNTAX)?);
            query.stores_distances = stores_distances;
        }
        let is_known = |target| mutant!("commands_geo_stores_anywhere") || is_key(args, target);
        if query.target.is_some_and(|target| !is_known(target)) {
            return Err(Reply::error(
                "ERR syntax error, the key of STORE or STOREDIST is stated twice",
            ));
        }
        query.check("STORE option in GEORADIUS")?;
        Ok(query)
    }

    /// Reads the words of `GEOSEARCH` and `GEOSEARCHSTORE`, whose key is argument `at`.
    fn parse_search(
        args: Args<'a>,
        at: usize,
        set: Option<SortedSet<'_>>,
    ) -> Result<Self, Reply<'static>> {
        let stores = at == 2;
        let target = stores.then(|| args.get(1));
        let mut query = Self { unit: 1.0, target, ..Self::default() };
        let (mut by_member, mut by_position) = (false, false);
        let mut words = args.iter().skip(at + 1);
        while let Some(word) = words.next() {
            if query.common_option(word, &mut words)? {
                continue;
            }
            let left = words.clone().count();
            if stores && is_word(word, "STOREDIST") {
                query.stores_distances = true;
            } else if !by_position && is_word(word, "FROMMEMBER") && left >= 1 {
                by_member = true;
                query.begin_at(words.next().expect("a word follows"), set)?;
            } else if !by_member && is_word(word, "FROMLONLAT") && left >= 2 {
                by_position = true;
                query.centre = Some(position(&mut words)?);
            } else if query.takes_circle() && is_word(word, "BYRADIUS") && left >= 2 {
                query.circle(&mut words)?;
            } else if query.takes_box() && is_word(word, "BYBOX") && left >= 3 {
                query.rectangle(&mut words)?;
            } else {
                return Err(SYNTAX);
            }
        }
        query.check_compatible("GEOSEARCHSTORE")?;
        let name = crate::expiry::quote(args.get(0));
        let missing = |what: &str| {
            let text = format!("ERR exactly one of {what} can be specified for {name}");
            Err(Reply::Error(text.into()))
        };
        if !by_member && !by_position {
            return missing("FROMMEMBER or FROMLONLAT");
        }
        if query.shape.is_none() {
            return missing("BYRADIUS and BYBOX");
        }
        query.check_any()?;
        Ok(query)
    }

    fn takes_circle(&self) -> bool {
        !matches!(self.shape, Some(Shape::Box { .. }))
    }

    fn takes_box(&self) -> bool {
        !matches!(self.shape, Some(Shape::Circle { .. }))
    }

    /// Takes an option that all searches have, with its value if it has one; false if there is no such
    /// option.
    fn common_option(
        &mut self,
        word: &[u8],
        words: &mut (impl Iterator<Item = &'a [u8]> + Clone),
    ) -> Result<bool, Reply<'static>> {
        let option = match () {
            () if is_word(word, "WITHDIST") => &mut self.with_distance,
            () if is_word(word, "WITHHASH") => &mut self.with_score,
            () if is_word(word, "WITHCOORD") => &mut self.with_coordinates,
            () if is_word(word, "ANY") => &mut self.any,
            () if is_word(word, "ASC") => {
                self.order = Some(Order::Ascending);
                return Ok(true);
            }
            () if is_word(word, "DESC") => {
                self.order = Some(Order::Descending);
                return Ok(true);
            }
            () if is_word(word, "COUNT") && words.clone().next().is_some() => {
                let count = integer(words.next().expect("a word follows"))?;
                let count = usize::try_from(count).ok().filter(|count| *count > 0);
                self.count = Some(count.ok_or(Reply::error("ERR COUNT must be > 0"))?);
                return Ok(true);
            }
            () => return Ok(false),
        };
        *option = true;
        Ok(true)
    }

    fn begin_at(
        &mut self,
        member: &[u8],
        set: Option<SortedSet<'_>>,
    ) -> Result<(), Reply<'static>> {
        let Some(set) = set else { return Ok(()) };
        let centre = position_of(set, member)
            .ok_or(Reply::error("ERR could not decode requested zset member"))?;
        self.centre = Some(centre);
        Ok(())
    }

    fn circle(&mut self, words: &mut impl Iterator<Item = &'a [u8]>) -> Result<(), Reply<'static>> {
        let radius = parse_double(words.next().ok_or(SYNTAX)?)
            .ok_or(Reply::error("ERR need numeric radius"))?;
        if radius < 0.0 {
            return Err(Reply::error("ERR radius cannot be negative"));
        }
        self.unit = unit(words.next().ok_or(SYNTAX)?)?;
        self.shape = Some(Shape::Circle { radius: radius * self.unit });
        Ok(())
    }

    fn rectangle(
        &mut self,
        words: &mut impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), Reply<'static>> {
        let mut number =
            |error| parse_double(words.next().ok_or(SYNTAX)?).ok_or(Reply::error(error));
        let width = number("ERR need numeric width")?;
        let height = number("ERR need numeric height")?;
        if width < 0.0 || height < 0.0 {
            return Err(Reply::error("ERR height or width cannot be negative"));
        }
        self.unit = unit(words.next().ok_or(SYNTAX)?)?;
        self.shape = Some(Shape::Box { width: width * self.unit, height: height * self.unit });
        Ok(())
    }

    fn check(&self, name: &str) -> Result<(), Reply<'static>> {
        self.check_compatible(name)?;
        self.check_any()
    }

    fn check_compatible(&self, name: &str) -> Result<(), Reply<'static>> {
        let answers_more = self.with_distance || self.with_score || self.with_coordinates;
        if self.target.is_none() || !answers_more {
            return Ok(());
        }
        let text =
            format!("ERR {name} is not compatible with WITHDIST, WITHHASH and WITHCOORD options");
        Err(Reply::Error(text.into()))
    }

    fn check_any(&self) -> Result<(), Reply<'static>> {
        if self.any && self.count.is_none() {
            return Err(Reply::error("ERR the ANY argument requires COUNT argument"));
        }
        Ok(())
    }

    /// The members that the shape covers, as many and in the order as was asked for.
    fn find(&self, set: SortedSet<'a>) -> Vec<Found<'a>> {
        let (Some(centre), Some(shape)) = (self.centre, self.shape) else { return Vec::new() };
        let most = self.count.unwrap_or(usize::MAX);
        let enough = if self.any { most } else { usize::MAX };
        let mut found = Vec::new();
        for cell in shape.cells(centre) {
            let (from, to) = cell.scores();
            let inside = set.entries().skip_while(|entry| entry.score < from);
            let inside = inside.take_while(|entry| entry.score < to);
            let covered = inside.filter_map(|entry| {
                let position = Position::of_score(entry.score);
                let distance = shape.distance(centre, position)?;
                Some(Found { entry, position, distance })
            });
            let left = enough - found.len();
            found.extend(covered.take(left));
        }
        let order = self.order.or((self.count.is_some() && !self.any).then_some(Order::Ascending));
        let by_distance =
            |one: &Found<'_>, other: &Found<'_>| one.distance.total_cmp(&other.distance);
        match order {
            Some(Order::Ascending) => found.sort_by(by_distance),
            Some(Order::Descending) => found.sort_by(|one, other| by_distance(other, one)),
            None => {}
        }
        found.truncate(most);
        found
    }

    fn answer(&self, found: Vec<Found<'a>>) -> Reply<'a> {
        let bare = !(self.with_distance || self.with_score || self.with_coordinates);
        let answer = |found: Found<'a>| {
            let member = Reply::Bulk(found.entry.member.into());
            if bare {
                return member;
            }
            let mut parts = vec![member];
            parts.extend(self.with_distance.then(|| distance(found.distance / self.unit)));
            parts.extend(self.with_score.then_some(Reply::Int(found.entry.score as i64)));
            parts.extend(self.with_coordinates.then(|| coordinates(found.position)));
            Reply::Array(parts)
        };
        Reply::Array(found.into_iter().map(answer).collect())
    }

    /// What was found, as members of another sorted set.
    fn entries(&self, found: &[Found<'a>]) -> Vec<Entry<'a>> {
        let score = |found: &Found<'_>| match self.stores_distances {
            true => found.distance / self.unit,
            false => found.entry.score,
        };
        let mut entries: Vec<_> =
            found.iter().map(|found| Entry { score: score(found), ..found.entry }).collect();
        entries.sort_by(Entry::order);
        // A cell may have been looked through twice.
        entries.dedup();
        entries
    }
}

/// Whether a key is one of those that the specifications of the command find.
fn is_key(args: Args<'_>, key: &[u8]) -> bool {
    let spec = lookup(args.get(0)).expect("the command was found by this name");
    spec.key_specs.iter().any(|keys| keys.keys(args).any(|other| other == key))
}

fn radius_read<'a>(from: From, args: Args<'a>, current: Current<'a>) -> Outcome<'a> {
    let set = SortedSet::of(current)?;
    let query = Query::parse_radius(from, false, args, set)?;
    Ok((set.map_or(Reply::Array(vec![]), |set| query.answer(query.find(set))), Change::Keep))
}

/// What `GEORADIUS` and `GEORADIUSBYMEMBER` do to their key: they store only if they are told to.
pub(crate) fn radius_access(args: Args<'_>) -> Access {
    let spec = lookup(args.get(0)).expect("the command was found by this name");
    let targets = || spec.key_specs.iter().skip(1).flat_map(|keys| keys.keys(args));
    let stores_there = targets().next().is_some() && targets().all(|key| key == args.get(1));
    if stores_there { Access::Update } else { Access::Read }
}

pub(crate) fn georadius(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    radius(From::Coordinates, args, workspace).unwrap_or_else(|error| error)
}

pub(crate) fn georadiusbymember(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    radius(From::Member, args, workspace).unwrap_or_else(|error| error)
}

fn radius(
    from: From,
    args: Args<'_>,
    workspace: &mut dyn Workspace,
) -> Result<Reply<'static>, Reply<'static>> {
    let set = SortedSet::of(workspace.read(args.get(1)))?;
    let query = Query::parse_radius(from, true, args, set)?;
    let found = set.map_or(Vec::new(), |set| query.find(set));
    let Some(target) = query.target else { return Ok(query.answer(found).into_owned()) };
    let entries = query.entries(&found);
    let (count, change) = (entries.len(), store_new(&entries)?);
    Ok(sorted_set::write(target, count, change, workspace))
}

/// What `GEOSEARCHSTORE` does to its key if both are the same one.
pub(crate) fn geosearchstore_access(args: Args<'_>) -> Access {
    if args.get(1) == args.get(2) { Access::Update } else { Access::Read }
}

pub(crate) fn geosearchstore(
    args: Args<'_>,
    _: UnixMillis,
    workspace: &mut dyn Workspace,
) -> Reply<'static> {
    search_and_store(args, workspace).unwrap_or_else(|error| error)
}

fn search_and_store(
    args: Args<'_>,
    workspace: &mut dyn Workspace,
) -> Result<Reply<'static>, Reply<'static>> {
    let set = SortedSet::of(workspace.read(args.get(2)))?;
    let query = Query::parse_search(args, 2, set)?;
    let found = set.map_or(Vec::new(), |set| query.find(set));
    let entries = query.entries(&found);
    let (count, change) = (entries.len(), store_new(&entries)?);
    Ok(sorted_set::write(args.get(1), count, change, workspace))
}
