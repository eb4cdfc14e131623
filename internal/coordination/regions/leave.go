package regions

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
)

// A region that is retired leaves what was decided there to the others, by folds. Mostly etcd has it, and the region's bucket is not asked: it may be lost.
// Etcd has all of it where the retirement reserved it, and it was not restored since, which the key of regions that are being retired says. Else the
// bucket has to say it, as long as it answers; and where it does not, an operator, that it may be forgotten.

// leaving are the regions of which the others do not have everything yet, by the records of the epoch that was moved to.
func (s *state) leaving() (out []claims.Region) {
	for _, t := range s.retired {
		if !t.Done {
			out = append(out, t.Name)
		}
	}
	return out
}

// reserved tells the leaving regions of which etcd has everything from those whose buckets are read, since it may lack something. That of a region of which
// it may be forgotten is not read: it may have what nobody can read.
func (s *state) reserved(leaving []claims.Region, c change) (reserved, reads []claims.Region) {
	newest, _ := s.newest()
	for _, n := range leaving {
		if s.isReserved(newest, n) {
			reserved = append(reserved, n)
		} else if s.answers(n) && n != c.forget {
			reads = append(reads, n)
		}
	}
	return reserved, reads
}

// answers: the region's bucket can be read, and is that of the region.
func (s *state) answers(name claims.Region) bool { return s.found[name].Region == name }

// isReserved: etcd has everything that was decided in a region that is being retired.
func (s *state) isReserved(newest Record, name claims.Region) bool {
	return s.value != nil && s.cluster == newest.Cluster && slices.Contains(s.retiring, name)
}

// mayLeave refuses the next epoch where it would forget what was decided in regions that are being retired.
func (s *state) mayLeave(next Record, c change) error {
	newest, _ := s.newest()
	var lack []claims.Region
	for _, t := range next.Retired {
		// What is retired now was asked before; and whoever goes on with a retirement that died, whatever is forgotten, was told of all of them.
		asked := t.Name == c.forget || newest.retired(c.forget) || t.Name == c.retire && !newest.retired(c.retire)
		// A bucket without a record is that of a region whose addition had died, but where etcd's epoch has it.
		nothing := slices.Contains(s.absent, t.Name) && !slices.Contains(s.epoch.Regions, t.Name)
		if !t.Done && !asked && !nothing && !s.answers(t.Name) && !s.isReserved(newest, t.Name) {
			lack = append(lack, t.Name)
		}
	}
	if len(lack) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %v, being retired: etcd was restored since that began, and no bucket of theirs answers that has their record; bring the buckets back, or retire one of these regions once more, whatever is forgotten by it",
		ErrForgets, lack)
}

// lastRetiring is the one of some regions whose retirement was the last to reserve etcd.
func (s *state) lastRetiring(of []claims.Region) (last claims.Region) {
	for _, n := range s.retiring {
		if slices.Contains(of, n) {
			last = n
		}
	}
	return last
}

// retiring puts the names of regions that are being retired into etcd.
func (k *Keeper) retiring(names []claims.Region) claims.Put {
	var out []string
	for _, n := range names {
		out = append(out, string(n))
	}
	return claims.Put{Key: k.cfg.Keys.Retiring(), Value: []byte(strings.Join(out, ","))}
}

// keepRegion folds what the bucket of a retired region has, boot by boot.
func (f *filler) keepRegion(ctx context.Context, s *scanner, r Region) error {
	var boots []kept
	n := 0
	flush := func() error {
		of := boots
		boots, n = nil, 0
		return f.keepBoots(ctx, s, of)
	}
	// end is behind all identities of the boot so far: those that share sequence numbers are compared together.
	var end uint64
	l := newListing(r)
	for err := l.advance(ctx, nil); l.more || err != nil; err = l.advance(ctx, nil) {
		if err != nil {
			return err
		}
		boot := l.id.BootOf()
		same := len(boots) > 0 && boots[len(boots)-1].boot == boot
		if full := n >= scanManifests && (!same || l.id.SeqStart > end); full || !same && len(boots) == scanBoots {
			if err := flush(); err != nil {
				return err
			}
			same = false
		}
		if !same {
			boots, end = append(boots, kept{boot: boot, from: &r}), 0
		}
		last := &boots[len(boots)-1]
		last.ids, end, n = append(last.ids, l.id), max(end, l.id.SeqEnd), n+1
	}
	return flush()
}
