package redundancy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/spread"
)

// Reason is why a place may not leave.
type Reason string

// Reasons. Those of the first group are overruled by force.
const (
	TooFewPlaces Reason = "too_few_places" // fewer would be left than a body has files, or than a write needs
	NoRoom       Reason = "no_room"        // the others have less room than the place has files
	StillThere   Reason = "still_there"    // it answers: it can be emptied instead
	LosesBodies  Reason = "loses_bodies"   // there are bodies that cannot be read without it

	NoSuchPlace Reason = "no_such_place"
	WrongState  Reason = "wrong_state"
)

// LeaveError says why a place may not leave, or not return.
type LeaveError struct {
	Op, Place string
	Reason    Reason
	Detail    string
}

func (e *LeaveError) Error() string { return fmt.Sprintf("%s place %s: %s", e.Op, e.Place, e.Detail) }

// Forced reports whether force overrules the reason.
func (e *LeaveError) Forced() bool {
	return slices.Contains([]Reason{TooFewPlaces, NoRoom, StillThere, LosesBodies}, e.Reason)
}

// Drain begins to empty a place: it gets nothing more, and workers move what it has. It ends when the place was found empty, which
// is written down where the places are. Without force it is refused where the others cannot do without it.
func (k *Keeper) Drain(ctx context.Context, name string, force bool) error {
	k.leaving.Lock() // of two at the same time the second has to do without the place of the first
	defer k.leaving.Unlock()
	if err := mayLeave(name, k.tracker.statuses(), k.policy, k.opt.AckCopies); err != nil && !(force && err.Forced()) {
		return err
	}
	return k.setState(ctx, "drain", name, spread.Draining)
}

// Undrain takes a place into use again that is being emptied, or is empty.
func (k *Keeper) Undrain(ctx context.Context, name string) error {
	return k.setState(ctx, "undrain", name, spread.InUse)
}

// mayLeave says whether the others can do without a place. Those that are away don't count: nobody knows whether they return.
func mayLeave(name string, places []PlaceStatus, p Policy, ack int) *LeaveError {
	refuse := func(why Reason, format string, args ...any) *LeaveError {
		return &LeaveError{"drain", name, why, fmt.Sprintf(format, args...)}
	}
	wants := max(p.Copies, p.Data+p.Parity)
	left, local, free, known, needed := 0, 0, int64(0), true, int64(0)
	var its *PlaceStatus
	for i, pl := range places {
		switch {
		case pl.Name == OldPlace || pl.Name == LogPlace:
		case pl.Name == name:
			its = &places[i]
		case pl.State == string(spread.Draining):
			needed += pl.Used // goes to the same places
		case pl.State == string(spread.InUse) && pl.Up:
			left++
			if pl.Local {
				local++
			}
			known = known && pl.Free >= 0
			free += max(pl.Free, 0)
		}
	}
	switch {
	case its == nil:
		return refuse(NoSuchPlace, "there is none of that name")
	case its.State != string(spread.InUse):
		return refuse(WrongState, "it is %s already", its.State)
	case left < wants:
		return refuse(TooFewPlaces, "%d places that answer would be left, and a body has up to %d files, each on a place of its own", left, wants)
	case its.Local && local < ack:
		return refuse(TooFewPlaces, "%d local places that answer would be left, and a write needs %d", local, ack)
	case known && free < its.Used+needed:
		return refuse(NoRoom, "it has %d bytes, others that are being emptied %d, and the rest have room for %d", its.Used, needed, free)
	}
	return nil
}

// setState changes what is to become of a place, and acts on it at once.
func (k *Keeper) setState(ctx context.Context, op, name string, to spread.State) error {
	if name == OldPlace || name == LogPlace {
		return &LeaveError{op, name, NoSuchPlace, "there is none of that name"}
	}
	k.orders.Lock()
	k.ordered++
	err := k.files.SetState(name, to)
	k.orders.Unlock()
	return k.afterState(ctx, op, name, to, err)
}

// noteEmpty notes that a place has nothing left, which was found after so many orders: one that came since may have let it be
// written to again.
func (k *Keeper) noteEmpty(ctx context.Context, name string, ordered uint64) error {
	k.orders.Lock()
	if k.ordered != ordered {
		k.orders.Unlock()
		return nil // the next look finds out what holds now
	}
	err := k.files.SetState(name, spread.Drained)
	k.orders.Unlock()
	return k.afterState(ctx, "empty", name, spread.Drained, err)
}

// afterState is what follows an order: its error for whoever gave it, or a look at the places.
func (k *Keeper) afterState(ctx context.Context, op, name string, to spread.State, err error) error {
	var bad *spread.StateError
	switch {
	case errors.As(err, &bad) && !bad.Known && slices.ContainsFunc(k.tracker.statuses(), func(p PlaceStatus) bool { return p.Name == name }):
		return &LeaveError{op, name, WrongState, "it was never used: the settings may leave it out"}
	case errors.As(err, &bad) && !bad.Known:
		return &LeaveError{op, name, NoSuchPlace, bad.Error()}
	case errors.As(err, &bad):
		return &LeaveError{op, name, WrongState, bad.Error()}
	case err != nil:
		return fmt.Errorf("%s place %s: %w", op, name, err)
	}
	k.opt.Log.Warn("what is to become of a place was changed", "place", name, "state", cmpState(to))
	// Whoever asked for it may go away, and a place that is asked meanwhile must not look as if it did not answer.
	return k.look(context.WithoutCancel(ctx))
}

func cmpState(s spread.State) string {
	if s == spread.InUse {
		return "in use"
	}
	return string(s)
}

// emptied notes which of the places that are being emptied have nothing left. No file is being written there and none can be begun,
// the ledger knows of none, and then the place itself has none: so it stays empty.
func (k *Keeper) emptied(ctx context.Context) error {
	k.orders.Lock()
	ordered := k.ordered
	k.orders.Unlock()
	for _, p := range k.tracker.statuses() {
		if p.State != string(spread.Draining) || !p.Up || k.files.Writing(p.Name) > 0 {
			continue
		}
		rows, err := k.ledger.AtPlace(p.ID, ledger.Key{}, 1)
		if err != nil {
			return err
		}
		if len(rows) > 0 {
			continue
		}
		err = k.files.List(ctx, p.ID, "", func(Listed) error { return errNotEmpty })
		if errors.Is(err, errNotEmpty) {
			if !k.pass(p.ID).Began.IsZero() && k.pass(p.ID).Ended.IsZero() {
				continue // it is being listed
			}
			k.setPass(p.ID, Pass{}) // the ledger has yet to hear of these files
			continue
		}
		if err == nil {
			err = k.noteEmpty(ctx, p.Name, ordered)
		}
		// The next look tries again.
		if err != nil {
			k.opt.Log.Warn("a place could not be noted as empty", "place", p.Name, "error", err)
			return nil
		}
		return nil // setState has looked at the others
	}
	return nil
}

var errNotEmpty = errors.New("there is a file")

// ObjectName names a version of an object.
type ObjectName struct {
	Bucket  string `json:"bucket"`
	Key     string `json:"key"`
	Version string `json:"version,omitempty"`
}

// Losses are what cannot be read without a place, as far as the ledger knows.
type Losses struct {
	// Files that the place has, of named bodies, and Bodies among them that have too little elsewhere.
	Files  int64 `json:"files"`
	Bodies int64 `json:"lost_bodies"`
	Bytes  int64 `json:"lost_bytes"`
	// IDs are the first of these bodies, and Objects those of the objects that name one of them, up to 1,000 each.
	IDs     []string     `json:"bodies"`
	Objects []ObjectName `json:"objects"`
}

// mostLosses bounds what is named of losses.
const mostLosses = 1000

// Losses says what would be lost with a place: bodies with a file there that cannot be read from the others, and those of which the
// ledger knows of no file at all, which may be there: of a place that was never listed since the ledger was begun, it knows nothing.
func (k *Keeper) Losses(ctx context.Context, name string) (out Losses, err error) {
	out.IDs, out.Objects = []string{}, []ObjectName{}
	id, listed, ok := k.tracker.listed(name)
	if !ok {
		return out, nil // there is none of that name
	}
	there := map[string]bool{}
	for _, p := range k.tracker.places() {
		there[p.ID] = p.ID != id
	}
	lost := map[string]bool{}
	if id != "" {
		if err := k.lossesAt(ctx, id, there, lost, &out); err != nil {
			return out, err
		}
	}
	if err := k.lossesElsewhere(ctx, id, listed, there, lost, &out); err != nil {
		return out, err
	}
	if len(lost) > 0 && k.opt.Objects != nil {
		list, err := k.opt.Objects(ctx, lost, mostLosses)
		if err != nil {
			return out, err
		}
		out.Objects = append(out.Objects, list...)
	}
	return out, ctx.Err()
}

// lossesAt counts the bodies that have a file at a place.
func (k *Keeper) lossesAt(ctx context.Context, id string, there, lost map[string]bool, out *Losses) error {
	last := ""
	for behind := (ledger.Key{}); ctx.Err() == nil; {
		rows, err := k.ledger.AtPlace(id, behind, listPage)
		if err != nil {
			return err
		}
		for _, r := range rows {
			behind = r.Key
			out.Files++
			if r.Body == last {
				continue
			}
			last = r.Body
			if err := k.lossOf(r, there, lost, out); err != nil {
				return err
			}
		}
		if len(rows) < listPage {
			break
		}
	}
	return nil
}

// lossesElsewhere counts the named bodies without a row at a place that may be there nevertheless.
func (k *Keeper) lossesElsewhere(ctx context.Context, id string, listed bool, there, lost map[string]bool, out *Losses) error {
	if k.opt.Bodies == nil {
		return nil
	}
	for after := ""; ctx.Err() == nil; {
		bodies, err := k.opt.Bodies(after, listPage)
		if err != nil || len(bodies) == 0 {
			return err
		}
		for _, b := range bodies {
			after = b
			rows, err := k.ledger.Rows(b)
			if err != nil {
				return err
			}
			if id != "" && hasAny(rows, id) || listed && len(rows) > 0 || readableFrom(rows, there) {
				continue
			}
			out.add(b, rows, lost)
		}
	}
	return nil
}

// add notes a body that would be lost.
func (l *Losses) add(body string, rows []ledger.Row, lost map[string]bool) {
	l.Bodies++
	for _, r := range rows {
		if r.Size > 0 {
			l.Bytes += r.Size
			break
		}
	}
	if len(lost) < mostLosses {
		lost[body] = true
		l.IDs = append(l.IDs, body)
	}
}

func (k *Keeper) lossOf(r ledger.Row, there, lost map[string]bool, out *Losses) error {
	rows, err := k.ledger.Rows(r.Body)
	if err != nil || readableFrom(rows, there) {
		return err
	}
	naming, err := k.opt.Names(r.Body)
	if err != nil || naming == Unnamed {
		return err
	}
	out.add(r.Body, rows, lost)
	return nil
}

// readableFrom reports whether a body can be read from some places: from a copy, or from enough shards of one policy.
func readableFrom(rows []ledger.Row, there map[string]bool) bool {
	type code struct {
		policy uint32
		k, m   uint8
	}
	shards := map[code]map[uint16]bool{}
	for _, r := range rows {
		if !there[r.Place] || !r.State.Readable() {
			continue
		}
		if r.Kind == ledger.Copy {
			return true
		}
		c := code{r.Policy, r.K, r.M}
		if shards[c] == nil {
			shards[c] = map[uint16]bool{}
		}
		if shards[c][r.Index] = true; len(shards[c]) >= int(r.K) {
			return true
		}
	}
	return false
}

// DeclareLost gives a place up, for good, with all that it has: its files are made again elsewhere, from those of the others. It
// gives what is lost by that. Without force a place that answers is not given up, nor one that the only files of a body are on.
func (k *Keeper) DeclareLost(ctx context.Context, name string, force bool) (Losses, error) {
	refuse := func(why Reason, format string, args ...any) error {
		return &LeaveError{"give up", name, why, fmt.Sprintf(format, args...)}
	}
	losses, err := k.Losses(ctx, name)
	if err != nil {
		return losses, fmt.Errorf("give up place %s: %w", name, err)
	}
	for _, p := range k.tracker.statuses() {
		if p.Name == name && p.Up && p.State != string(spread.Drained) && !force {
			return losses, refuse(StillThere, "it answers: it can be emptied, without a loss")
		}
	}
	if losses.Bodies > 0 && !force {
		return losses, refuse(LosesBodies, "%d bodies with %d bytes cannot be read without it", losses.Bodies, losses.Bytes)
	}
	if err := k.setState(ctx, "give up", name, spread.Lost); err != nil {
		return losses, err
	}
	k.opt.Log.Error("a place was declared lost", "place", name, "files", losses.Files, "lost_bodies", losses.Bodies, "lost_bytes", losses.Bytes)
	for _, o := range losses.Objects {
		k.opt.Log.Error("an object was lost with a place", "place", name, "bucket", o.Bucket, "key", o.Key, "version", o.Version)
	}
	return losses, nil
}
