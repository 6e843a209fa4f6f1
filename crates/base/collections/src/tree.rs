//! Sequences of items whose bytes lie one behind the other in leaves of about a kilobyte, under inner
//! nodes that count them.
//!
//! One structure serves all collections. A [`Layout`] says how long an item is and by what a leaf is
//! found; inside a leaf items are walked. So a large collection takes little more memory than its
//! packed bytes, a leaf is copied as one stretch, and a collection of a million members is freed in the
//! time of some ten thousand leaves.
//!
//! A clone shares all nodes with its original, and costs one count. A change copies the nodes on
//! its way that are shared, and otherwise works in place.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Debug;

/// Bytes of items beyond which a leaf is divided, if it has several.
const LEAF_BYTES_MAX: usize = 1024;
/// Bytes of items with which leaves are built, so that there is room for more.
const LEAF_BYTES_BUILT: usize = 768;
/// Children of an inner node.
const CHILDREN_MAX: usize = 32;
/// Children with which inner nodes are built.
const CHILDREN_BUILT: usize = 24;
/// Room that a leaf is given at a time, in bytes.
const ROOM: usize = 64;
/// Memory of a leaf besides its items: the node, its place among its parent's children, and the room
/// that is mostly left.
const LEAF_OVERHEAD: usize = 128;

/// How items lie in bytes, and what separates the children of a node.
pub(crate) trait Layout: Clone + 'static {
    /// The least of what may lie in a child.
    type Bound: Clone + Debug;

    /// Bytes of the first one of these items. `None` at the end, and at damage.
    fn item_len(items: &[u8]) -> Option<usize>;

    /// What stands before these items and not before any other ones.
    fn bound(items: &[u8]) -> Self::Bound;

    /// Moves about half of a leaf's items out of it, to those behind the bound that it gives. `None` if
    /// they can't be separated. Where the leaf has grown at an end, it will grow on: then all items stay
    /// together that may.
    fn divide(leaf: &mut Leaf) -> Option<(Self::Bound, Leaf)> {
        let bytes = leaf.items.len();
        let (first, last) = (leaf.put_at == 0, leaf.put_to() == bytes);
        let (mut at, mut left) = (0, 0);
        while left + 1 < leaf.count {
            let length = Self::item_len(&leaf.items[at..])?;
            let is_over = match (first, last) {
                (true, false) => at + LEAF_BYTES_MAX >= bytes,
                (false, true) => at + length > LEAF_BYTES_MAX,
                _ => at + length > bytes / 2,
            };
            if left > 0 && is_over {
                break;
            }
            at += length;
            left += 1;
        }
        let items = leaf.items.split_off(at);
        let right = Leaf::new(items, leaf.count - left);
        leaf.items.shrink_to(at.next_multiple_of(ROOM));
        leaf.count = left;
        Some((Self::bound(&right.items), right))
    }
}

/// Which way leads to a leaf.
pub(crate) trait Seek<L: Layout> {
    /// The number of the child; the least of the first one doesn't count.
    fn child(&mut self, children: &[Child<L>]) -> usize;
}

/// To the item with this number, counted from the node's first. One behind the last item is in the last
/// leaf.
pub(crate) struct At(pub(crate) usize);

impl<L: Layout> Seek<L> for At {
    fn child(&mut self, children: &[Child<L>]) -> usize {
        let last = children.len() - 1;
        for (number, child) in children[..last].iter().enumerate() {
            if self.0 < child.count {
                return number;
            }
            self.0 -= child.count;
        }
        last
    }
}

/// To the last leaf whose bound is not behind what is sought.
pub(crate) struct By<F>(pub(crate) F);

impl<L: Layout, F: FnMut(&L::Bound) -> bool> Seek<L> for By<F> {
    fn child(&mut self, children: &[Child<L>]) -> usize {
        let is_before = &mut self.0;
        children[1..].partition_point(|child| child.least.as_ref().is_none_or(&mut *is_before))
    }
}

/// Items, one behind the other.
#[derive(Clone, Default, Debug)]
pub(crate) struct Leaf {
    pub(crate) items: Vec<u8>,
    pub(crate) count: usize,
    /// Where bytes were put last, and how many.
    put_at: usize,
    put_len: usize,
}

impl Leaf {
    /// A leaf of these items.
    pub(crate) fn new(items: Vec<u8>, count: usize) -> Self {
        Self { items, count, put_at: 0, put_len: 0 }
    }

    fn put_to(&self) -> usize {
        self.put_at + self.put_len
    }

    /// Puts an item, which consists of these stretches, at a place between two.
    pub(crate) fn insert(&mut self, at: usize, item: &[&[u8]]) {
        self.put(at, item);
        self.count += 1;
    }

    /// Puts bytes at a place.
    pub(crate) fn put(&mut self, at: usize, stretches: &[&[u8]]) {
        let (old, new) =
            (self.items.len(), stretches.iter().map(|bytes| bytes.len()).sum::<usize>());
        if self.items.capacity() < old + new {
            self.items.reserve_exact((old + new).next_multiple_of(ROOM) - old);
        }
        (self.put_at, self.put_len) = (at, new);
        self.items.resize(old + new, 0);
        self.items.copy_within(at..old, at + new);
        let mut to = at;
        for bytes in stretches {
            self.items[to..to + bytes.len()].copy_from_slice(bytes);
            to += bytes.len();
        }
    }

    /// Replaces so many bytes of an item at a place.
    pub(crate) fn splice(&mut self, at: usize, cut: usize, put: &[u8]) {
        let (over, more) = put.split_at(cut.min(put.len()));
        let end = at + over.len();
        self.items[at..end].copy_from_slice(over);
        if more.is_empty() {
            self.items.drain(end..at + cut);
        } else {
            self.put(end, &[more]);
        }
    }

    /// Takes the item out that lies in this place.
    pub(crate) fn remove(&mut self, place: core::ops::Range<usize>) {
        self.items.drain(place);
        self.count -= 1;
    }
}

#[derive(Clone, Debug)]
enum Node<L: Layout> {
    Leaf(Leaf),
    Inner(Vec<Child<L>>),
}

/// A node and what its parent knows of it.
#[derive(Clone, Debug)]
pub(crate) struct Child<L: Layout> {
    /// Nothing in it stands before this. `None` if nothing stands before it at all.
    least: Option<L::Bound>,
    count: usize,
    node: Arc<Node<L>>,
}

/// What a tree holds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Totals {
    items: usize,
    bytes: usize,
    leaves: usize,
}

/// A sequence of items.
#[derive(Clone, Debug)]
pub(crate) struct Tree<L: Layout> {
    root: Arc<Node<L>>,
    totals: Totals,
}

impl<L: Layout> Default for Tree<L> {
    fn default() -> Self {
        let root = Arc::new(Node::Leaf(Leaf::default()));
        Self { root, totals: Totals { items: 0, bytes: 0, leaves: 1 } }
    }
}

impl<L: Layout> Tree<L> {
    /// The tree of these items, which come in its order. Items that must not be separated come with
    /// `true` behind the first of them.
    pub(crate) fn build<'a>(items: impl Iterator<Item = (&'a [u8], bool)>) -> Self {
        let mut leaves: Vec<Child<L>> = Vec::new();
        let mut leaf = Leaf::default();
        let mut totals = Totals { leaves: 1, ..Totals::default() };
        let child = |leaf: Leaf, is_first: bool| Child {
            least: (!is_first).then(|| L::bound(&leaf.items)),
            count: leaf.count,
            node: Arc::new(Node::Leaf(leaf)),
        };
        for (item, is_bound_to_last) in items {
            let is_full = leaf.items.len() + item.len() > LEAF_BYTES_BUILT && leaf.count > 0;
            if is_full && !is_bound_to_last {
                let full = core::mem::take(&mut leaf);
                leaves.push(child(full, leaves.is_empty()));
                totals.leaves += 1;
            }
            let end = leaf.items.len();
            leaf.insert(end, &[item]);
            totals.items += 1;
            totals.bytes += item.len();
        }
        leaves.push(child(leaf, leaves.is_empty()));
        let mut level = leaves;
        while level.len() > 1 {
            let mut above = Vec::with_capacity(level.len().div_ceil(CHILDREN_BUILT));
            let mut left = level.into_iter().peekable();
            while left.peek().is_some() {
                let children: Vec<_> = left.by_ref().take(CHILDREN_BUILT).collect();
                above.push(parent(children));
            }
            level = above;
        }
        let root = level.pop().expect("there is at least one leaf").node;
        Self { root, totals }
    }

    pub(crate) fn len(&self) -> usize {
        self.totals.items
    }

    /// Bytes of all items.
    pub(crate) fn bytes(&self) -> usize {
        self.totals.bytes
    }

    /// Memory in bytes, about.
    pub(crate) fn memory(&self) -> usize {
        self.totals.bytes + self.totals.leaves * LEAF_OVERHEAD
    }

    /// A leaf, and the number of its first item.
    pub(crate) fn leaf(&self, seek: &mut impl Seek<L>) -> (&Leaf, usize) {
        let (mut node, mut first) = (&self.root, 0);
        loop {
            match &**node {
                Node::Leaf(leaf) => return (leaf, first),
                Node::Inner(children) => {
                    let number = seek.child(children);
                    first += children[..number].iter().map(|child| child.count).sum::<usize>();
                    node = &children[number].node;
                }
            }
        }
    }

    /// Changes a leaf. What led there says what is left of the way.
    pub(crate) fn edit<S: Seek<L>, R>(
        &mut self,
        seek: &mut S,
        change: impl FnOnce(&mut Leaf, &S) -> R,
    ) -> R {
        let (result, split) = edit(&mut self.root, seek, &mut self.totals, change);
        if let Some((bound, count, node)) = split {
            let left = self.totals.items - count;
            let root = core::mem::replace(&mut self.root, Arc::new(Node::Inner(Vec::new())));
            let children = [
                Child { least: None, count: left, node: root },
                Child { least: Some(bound), count, node },
            ];
            self.root = Arc::new(Node::Inner(children.into()));
        }
        while let Node::Inner(children) = &*self.root
            && let [only] = &**children
        {
            self.root = Arc::clone(&only.node);
        }
        result
    }

    /// The items from this one on.
    pub(crate) fn items_from(&self, number: usize) -> Items<'_, L> {
        let mut items = Items { ways: Vec::new(), left: &[] };
        let mut seek = At(number);
        let mut node = &self.root;
        while let Node::Inner(children) = &**node {
            let number = seek.child(children);
            items.ways.push(&children[number + 1..]);
            node = &children[number].node;
        }
        items.enter(node);
        for _ in 0..seek.0 {
            items.next();
        }
        items
    }

    /// The items of the leaf to which this leads, and what stands before the next leaf, if there is one.
    pub(crate) fn leaf_and_bound(&self, seek: &mut impl Seek<L>) -> (&Leaf, Option<&L::Bound>) {
        let (mut node, mut behind) = (&self.root, None);
        loop {
            match &**node {
                Node::Leaf(leaf) => return (leaf, behind),
                Node::Inner(children) => {
                    let number = seek.child(children);
                    let next = children.get(number + 1).and_then(|child| child.least.as_ref());
                    behind = next.or(behind);
                    node = &children[number].node;
                }
            }
        }
    }

    /// The bytes of each leaf, in order.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = &[u8]> {
        let mut ways: Vec<&[Child<L>]> = Vec::new();
        let mut node = Some(&self.root);
        core::iter::from_fn(move || {
            let mut at = match node.take() {
                Some(root) => root,
                None => loop {
                    let way = ways.last_mut()?;
                    match way.split_first() {
                        Some((child, rest)) => {
                            *way = rest;
                            break &child.node;
                        }
                        None => drop(ways.pop()),
                    }
                },
            };
            loop {
                match &**at {
                    Node::Leaf(leaf) => return Some(&leaf.items[..]),
                    Node::Inner(children) => {
                        ways.push(&children[1..]);
                        at = &children[0].node;
                    }
                }
            }
        })
    }
}

fn parent<L: Layout>(mut children: Vec<Child<L>>) -> Child<L> {
    let least = children[0].least.take();
    let count = children.iter().map(|child| child.count).sum();
    Child { least, count, node: Arc::new(Node::Inner(children)) }
}

/// What was split off a node: everything from this bound on, so many items, in this node.
type Split<L> = Option<(<L as Layout>::Bound, usize, Arc<Node<L>>)>;

fn edit<L: Layout, S: Seek<L>, R>(
    node: &mut Arc<Node<L>>,
    seek: &mut S,
    totals: &mut Totals,
    change: impl FnOnce(&mut Leaf, &S) -> R,
) -> (R, Split<L>) {
    match Arc::make_mut(node) {
        Node::Leaf(leaf) => {
            totals.items -= leaf.count;
            totals.bytes -= leaf.items.len();
            let result = change(leaf, seek);
            totals.items += leaf.count;
            totals.bytes += leaf.items.len();
            let is_large = leaf.items.len() > LEAF_BYTES_MAX && leaf.count > 1;
            let split = if is_large { L::divide(leaf) } else { None };
            let split = split.map(|(bound, right)| {
                totals.leaves += 1;
                (bound, right.count, Arc::new(Node::Leaf(right)))
            });
            (result, split)
        }
        Node::Inner(children) => {
            let number = seek.child(children);
            let items = totals.items;
            let (result, split) = edit(&mut children[number].node, seek, totals, change);
            let child = &mut children[number];
            // Wraps around where items went, and comes back.
            child.count = child.count.wrapping_add(totals.items.wrapping_sub(items));
            if let Some((bound, count, node)) = split {
                child.count -= count;
                children.insert(number + 1, Child { least: Some(bound), count, node });
            } else {
                tidy(children, number, totals);
            }
            let split = (children.len() > CHILDREN_MAX).then(|| {
                let mut right = children.split_off(children.len() / 2);
                let bound = right[0].least.take().expect("only the first child has no bound");
                let count = right.iter().map(|child| child.count).sum();
                (bound, count, Arc::new(Node::Inner(right)))
            });
            (result, split)
        }
    }
}

/// After a change of a child: takes it away if it has nothing left, and joins it with a neighbour if
/// both together are small.
fn tidy<L: Layout>(children: &mut Vec<Child<L>>, number: usize, totals: &mut Totals) {
    if children[number].count == 0 && children.len() > 1 {
        totals.leaves -= leaves(&children[number].node);
        children.remove(number);
        // Nothing stands before the first child that its parent doesn't know.
        if number == 0 {
            children[0].least = None;
        }
        return;
    }
    for left in [number.checked_sub(1), Some(number)].into_iter().flatten() {
        let Some([one, other]) = children.get_mut(left..left + 2) else { continue };
        let joined = match (&*one.node, &*other.node) {
            (Node::Leaf(a), Node::Leaf(b)) => a.items.len() + b.items.len() <= LEAF_BYTES_MAX / 2,
            (Node::Inner(a), Node::Inner(b)) => a.len() + b.len() <= CHILDREN_MAX / 2,
            _ => unreachable!("all leaves lie equally deep"),
        };
        if !joined {
            continue;
        }
        let Child { least, count, node } = children.remove(left + 1);
        let one = &mut children[left];
        one.count += count;
        match (Arc::make_mut(&mut one.node), &*node) {
            (Node::Leaf(a), Node::Leaf(b)) => {
                let end = a.items.len();
                a.put(end, &[&b.items]);
                a.count += b.count;
                totals.leaves -= 1;
            }
            (Node::Inner(a), Node::Inner(b)) => {
                let from = a.len();
                a.extend(b.iter().cloned());
                a[from].least = least;
            }
            _ => unreachable!("all leaves lie equally deep"),
        }
        return;
    }
}

fn leaves<L: Layout>(node: &Node<L>) -> usize {
    match node {
        Node::Leaf(_) => 1,
        Node::Inner(children) => children.iter().map(|child| leaves(&child.node)).sum(),
    }
}

/// Items in order.
#[derive(Clone, Debug)]
pub(crate) struct Items<'a, L: Layout> {
    /// Children that follow, of each node on the way.
    ways: Vec<&'a [Child<L>]>,
    left: &'a [u8],
}

impl<'a, L: Layout> Items<'a, L> {
    fn enter(&mut self, mut node: &'a Node<L>) {
        loop {
            match node {
                Node::Leaf(leaf) => {
                    self.left = &leaf.items;
                    return;
                }
                Node::Inner(children) => {
                    self.ways.push(&children[1..]);
                    node = &children[0].node;
                }
            }
        }
    }
}

impl<'a, L: Layout> Iterator for Items<'a, L> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        while self.left.is_empty() {
            let way = self.ways.last_mut()?;
            match way.split_first() {
                Some((child, rest)) => {
                    *way = rest;
                    self.enter(&child.node);
                }
                None => drop(self.ways.pop()),
            }
        }
        let (item, left) = self.left.split_at(L::item_len(self.left)?);
        self.left = left;
        Some(item)
    }
}

#[cfg(test)]
impl<L: Layout> Tree<L> {
    /// Checks what must hold of every tree.
    pub(crate) fn check(&self) {
        let mut totals = Totals::default();
        let mut depths = Vec::new();
        walk(&self.root, 0, &mut totals, &mut depths);
        assert_eq!(totals, self.totals);
        depths.dedup();
        assert_eq!(depths.len(), 1, "leaves lie at depths {depths:?}");
    }
}

#[cfg(test)]
fn walk<L: Layout>(node: &Node<L>, depth: usize, totals: &mut Totals, depths: &mut Vec<usize>) {
    match node {
        Node::Leaf(leaf) => {
            let (mut rest, mut count) = (&leaf.items[..], 0);
            while let Some(length) = L::item_len(rest) {
                rest = &rest[length..];
                count += 1;
            }
            assert!(rest.is_empty());
            assert_eq!(count, leaf.count);
            totals.items += count;
            totals.bytes += leaf.items.len();
            totals.leaves += 1;
            depths.push(depth);
        }
        Node::Inner(children) => {
            assert!((1..=CHILDREN_MAX).contains(&children.len()));
            for (number, child) in children.iter().enumerate() {
                let before = totals.items;
                walk(&child.node, depth + 1, totals, depths);
                assert_eq!(totals.items - before, child.count);
                assert!(child.least.is_some() || number == 0, "a bound is missing");
            }
        }
    }
}
