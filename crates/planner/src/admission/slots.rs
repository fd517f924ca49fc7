//! Things with numbers that stay theirs until they go.

/// Things by number; the numbers of those that went are given again.
#[derive(Debug, Clone)]
pub(super) struct Slots<T> {
    things: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self {
            things: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    /// Takes a thing in; returns its number.
    pub(super) fn put(&mut self, thing: T) -> usize {
        if let Some(number) = self.free.pop() {
            self.things[number] = Some(thing);
            return number;
        }
        self.things.push(Some(thing));
        self.things.len() - 1
    }

    /// Takes a thing out.
    pub(super) fn take(&mut self, number: usize) -> Option<T> {
        let thing = self.things.get_mut(number)?.take();
        if thing.is_some() {
            self.free.push(number);
        }
        thing
    }

    pub(super) fn get(&self, number: usize) -> Option<&T> {
        self.things.get(number)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.things.get_mut(number)?.as_mut()
    }

    /// Above all numbers.
    pub(super) fn end(&self) -> usize {
        self.things.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_are_given_again() {
        let mut slots = Slots::default();
        let (one, two) = (slots.put("one"), slots.put("two"));
        assert_eq!((one, two, slots.end()), (0, 1, 2));
        assert_eq!(slots.take(one), Some("one"));
        assert_eq!((slots.take(one), slots.get(one)), (None, None));
        assert_eq!(slots.get(two), Some(&"two"));
        assert_eq!((slots.put("three"), slots.end()), (one, 2));
    }
}
