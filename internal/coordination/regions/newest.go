package regions

import (
	"fmt"
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
)

// Each region has a record of the epoch in its bucket, and movers that died, or were overtaken, may have left any of them behind. This file
// says which record counts, by what was read of them and of etcd.

// newest is the record with the highest number of those that count; ok is false where no region has one. Of two epochs with one number, of
// movers of which one knew a region that the other did not, it is the one that was taken. One that says that a linearizer was dissolved counts
// where there is no other: beside others it is of a linearizer that the region had of its own.
func (s *state) newest() (r Record, ok bool) {
	gone := s.gone()
	for _, name := range slices.Sorted(maps.Keys(s.found)) {
		f := s.found[name]
		if gone[name] {
			continue
		}
		switch {
		case !ok, r.Dissolved && !f.Dissolved:
		case r.Dissolved != f.Dissolved, f.Number < r.Number:
			continue
		case f.Number == r.Number && (f.ID == r.ID || s.taken(r) || !s.taken(f.Record)):
			continue
		}
		r, ok = f.Record, true
	}
	// Where one of its records says that the others have everything of a retired region, it is so: that is noted behind it, in one after the other.
	r.Retired = slices.Clone(r.Retired)
	for i, t := range r.Retired {
		for _, f := range s.found {
			r.Retired[i].Done = r.Retired[i].Done || f.Number == r.Number && f.ID == r.ID && slices.Contains(f.Retired, Retired{t.Name, true})
		}
	}
	return r, ok
}

// current: etcd has the epoch of the newest record.
func (s *state) current(newest Record) bool {
	return s.epoch.Number == newest.Number && s.epoch.ID == newest.ID
}

// gone are the regions that are retired: each that a record says so of, unless that record lies in the bucket of a retired region itself. A
// mover that had read it before may still write there, whatever it knows.
func (s *state) gone() map[claims.Region]bool {
	void, _ := s.judge()
	gone := map[claims.Region]bool{}
	for by, f := range s.found {
		for _, t := range f.Retired {
			if !void[by] {
				gone[t.Name] = true
			}
		}
	}
	return gone
}

func (s *state) isRetired(name claims.Region) bool { return s.gone()[name] }

// judge gives the regions whose records are void, because a record that counts calls the region retired. A record counts if all others that
// call its region retired are void.
//
// Two retirements at once can leave records that call each other's region retired, in a circle, which this leaves open. Then one of them
// counts by right; undecided are those of which none has a right.
func (s *state) judge() (void map[claims.Region]bool, undecided []claims.Region) {
	names := slices.Sorted(maps.Keys(s.found))
	void, counts := map[claims.Region]bool{}, map[claims.Region]bool{}
	for {
		var open []claims.Region
		for _, n := range names {
			switch {
			case counts[n] || void[n]:
			case s.called(n, func(by claims.Region) bool { return counts[by] }):
				void[n] = true
			case !s.called(n, func(by claims.Region) bool { return !void[by] }):
				counts[n] = true
			default:
				open = append(open, n)
			}
		}
		if slices.Equal(open, undecided) {
			// Nothing has changed but by right, or at all.
			n, ok := s.right(open, counts)
			if !ok {
				return void, open
			}
			counts[n] = true
		}
		undecided = open
	}
}

// right is the region of a circle whose record counts: that of the epoch which etcd has; or the first one, if there is another region that all
// of them have, whose own record counts: whoever sees fewer of them, and chooses otherwise, has to write there, too, and finds out.
func (s *state) right(circle []claims.Region, counts map[claims.Region]bool) (claims.Region, bool) {
	for _, n := range circle {
		if r := s.found[n]; r.Number == s.epoch.Number && r.ID == s.epoch.ID {
			return n, true
		}
	}
	for n := range counts {
		if len(circle) > 0 && !slices.ContainsFunc(circle, func(c claims.Region) bool { return !slices.Contains(s.found[c].Regions, n) }) {
			return circle[0], true
		}
	}
	return "", false
}

// called reports whether one of some records says that a region is retired.
func (s *state) called(n claims.Region, of func(claims.Region) bool) bool {
	for by, f := range s.found {
		if of(by) && f.retired(n) {
			return true
		}
	}
	return false
}

// taken reports whether all regions of a record's epoch that were read have it. Of one that these settings do not have nobody knows it: to
// take it for one without the record would leave the region out.
func (s *state) taken(r Record) bool {
	return !slices.ContainsFunc(r.Regions, func(n claims.Region) bool {
		f, there := s.found[n]
		return there && f.ID != r.ID || slices.Contains(s.absent, n)
	})
}

// mayTell names the regions that do not answer, of which one may have the record that decides.
func (s *state) mayTell() (out string) {
	for _, u := range s.unread {
		out += fmt.Sprintf(", and %s, which may know better, does not answer", u.Region)
	}
	return out
}

// related checks that all records are of one linearizer. The records of one name each other's regions, as those that take part or that are
// retired; and no two of them retire each other's region, unless two movers did so at once.
func (s *state) related() error {
	if _, undecided := s.judge(); len(undecided) > 0 {
		return fmt.Errorf("%w: the records of regions %v say of each other that they are retired%s; take those out of the settings that are lost", ErrRegionSettings, undecided, s.mayTell())
	}
	newest, _ := s.newest()
	gone := s.gone()
	for _, name := range slices.Sorted(maps.Keys(s.found)) {
		f := s.found[name]
		known := func(n claims.Region) bool {
			return slices.Contains(newest.Regions, n) || slices.ContainsFunc(newest.Retired, func(t Retired) bool { return t.Name == n })
		}
		if !gone[name] && !f.Dissolved && !slices.ContainsFunc(f.Regions, known) {
			return fmt.Errorf("%w: the bucket of region %s has epoch %d of another linearizer, with the regions %v; that of %s has epoch %d with %v",
				ErrRegionSettings, name, f.Number, f.Regions, newest.Region, newest.Number, newest.Regions)
		}
	}
	return nil
}
