package objectstore

import (
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"strconv"

	"lightmetrics.dev/lightmetrics/internal/platform/web"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/redundancy"
)

// Shapes of the answers of the admin paths below /redundancy, which lmctl reads.
type (
	// RedundancyStatus is the answer of GET /redundancy.
	RedundancyStatus = redundancy.Status
	// PlaceStatus is a place of it.
	PlaceStatus = redundancy.PlaceStatus
	// RedundancyFiles is the answer of GET /redundancy/files.
	RedundancyFiles struct {
		Files []redundancy.FileReport `json:"files"`
	}
	// RedundancyLetters is the answer of GET /redundancy/queue and /redundancy/dead-letters.
	RedundancyLetters struct {
		Bodies []redundancy.Letter `json:"bodies"`
	}
	// PlaceOrder is the body of POST /redundancy/places: what is to become of a place, drain, undrain or lost. Force overrules that
	// the others cannot do without it, or that something is lost with it.
	PlaceOrder struct {
		Place  string `json:"place"`
		Action string `json:"action"`
		Force  bool   `json:"force"`
	}
	// PlaceLosses is the answer of GET /redundancy/losses, and of POST /redundancy/places.
	PlaceLosses = redundancy.Losses
	// RedundancyOrder is the body of POST /redundancy/dead-letters: what to do with the dead letter of a body, retry or drop.
	RedundancyOrder struct {
		Body   string `json:"body"`
		Action string `json:"action"`
	}
)

// maxOrder bounds the body of a POST, bytes.
const maxOrder = 4 << 10

// register adds the paths of the keeper.
func (k *keeping) register(mux *web.Mux) {
	sees, operates := []web.Role{web.RoleReader, web.RoleOperator}, []web.Role{web.RoleOperator}
	get := func(path, about string, roles []web.Role, fn func(*redundancy.Keeper, *http.Request) (any, error)) {
		mux.Handle(web.Route{Pattern: "GET " + path, About: about, Roles: roles, Handler: k.answer(fn)})
	}
	post := func(path, about string, fn func(*redundancy.Keeper, *http.Request) (any, error)) {
		mux.Handle(web.Route{Pattern: "POST " + path, About: about, Roles: operates, MaxBody: maxOrder, Handler: onlyJSON(k.answer(fn))})
	}
	get("/redundancy", "places, policy, progress of healing and scrubbing", sees, func(keeper *redundancy.Keeper, _ *http.Request) (any, error) {
		return keeper.Status()
	})
	get("/redundancy/files", "the ledger: which file of which body is where; ?body=, ?state= or ?place=, ?after=, ?limit=", sees, files)
	get("/redundancy/queue", "bodies that need something; ?limit=", sees, func(keeper *redundancy.Keeper, r *http.Request) (any, error) {
		list, err := keeper.Queue(limit(r))
		return RedundancyLetters{list}, err
	})
	get("/redundancy/dead-letters", "bodies that were tried too often; ?after=, ?limit=", sees, func(keeper *redundancy.Keeper, r *http.Request) (any, error) {
		list, err := keeper.DeadLetters(r.FormValue("after"), limit(r))
		return RedundancyLetters{list}, err
	})
	post("/redundancy/dead-letters", "try a dead letter again, or drop it", order)
	get("/redundancy/losses", "what could not be read without ?place=, with the objects", operates, func(keeper *redundancy.Keeper, r *http.Request) (any, error) {
		return keeper.Losses(r.Context(), r.FormValue("place"))
	})
	post("/redundancy/places", "empty a place, take it into use again, or give it up: {\"place\", \"action\": drain, undrain or lost, \"force\"}", placeOrder)
	post("/redundancy/heal", "list all places and look at all bodies now", func(keeper *redundancy.Keeper, _ *http.Request) (any, error) {
		return struct{}{}, keeper.HealNow()
	})
	post("/redundancy/scrub", "begin to read back all files now", func(keeper *redundancy.Keeper, _ *http.Request) (any, error) {
		return struct{}{}, keeper.Scrub()
	})
}

// onlyJSON refuses other types of bodies: a page of another site can make a browser send those here without asking.
func onlyJSON(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
			web.WriteError(w, http.StatusUnsupportedMediaType, "unsupported_media_type", "want Content-Type: application/json", nil)
			return
		}
		next.ServeHTTP(w, r)
	})
}

var errNoLetter = errors.New("there is no dead letter of this body")

func (k *keeping) answer(fn func(*redundancy.Keeper, *http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keeper := k.get()
		if keeper == nil {
			web.WriteError(w, http.StatusNotFound, "no_places", "the store has no places, or is being opened", nil)
			return
		}
		v, err := fn(keeper, r)
		switch {
		case refusedToLeave(w, err):
		case errors.Is(err, redundancy.ErrQuery):
			web.WriteError(w, http.StatusBadRequest, "bad_request", err.Error(), nil)
		case errors.Is(err, errNoLetter):
			web.WriteError(w, http.StatusNotFound, "not_found", err.Error(), nil)
		case err != nil:
			web.WriteError(w, http.StatusServiceUnavailable, "unavailable", err.Error(), nil)
		default:
			web.WriteJSON(w, http.StatusOK, v)
		}
	})
}

// defaultLimit is the number of entries of an answer without ?limit=; the ledger gives 1,000 at most.
const defaultLimit = 100

func limit(r *http.Request) int {
	n, err := strconv.Atoi(r.FormValue("limit"))
	if err != nil || n < 1 {
		return defaultLimit
	}
	return n
}

func files(keeper *redundancy.Keeper, r *http.Request) (any, error) {
	list, err := keeper.Files(redundancy.Query{Body: r.FormValue("body"), State: r.FormValue("state"), Place: r.FormValue("place"),
		After: r.FormValue("after"), Limit: limit(r)})
	return RedundancyFiles{list}, err
}

// refusedToLeave answers with the reason why a place may not leave; false for other errors.
func refusedToLeave(w http.ResponseWriter, err error) bool {
	var e *redundancy.LeaveError
	if !errors.As(err, &e) {
		return false
	}
	status := http.StatusConflict
	if e.Reason == redundancy.NoSuchPlace {
		status = http.StatusNotFound
	}
	web.WriteError(w, status, string(e.Reason), e.Error(), nil)
	return true
}

func placeOrder(keeper *redundancy.Keeper, r *http.Request) (any, error) {
	var o PlaceOrder
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return nil, errors.Join(redundancy.ErrQuery, err)
	}
	none := PlaceLosses{IDs: []string{}, Objects: []redundancy.ObjectName{}}
	switch o.Action {
	case "drain":
		return none, keeper.Drain(r.Context(), o.Place, o.Force)
	case "undrain":
		return none, keeper.Undrain(r.Context(), o.Place)
	case "lost":
		return keeper.DeclareLost(r.Context(), o.Place, o.Force)
	}
	return nil, errors.Join(redundancy.ErrQuery, errors.New("action: want drain, undrain or lost"))
}

func order(keeper *redundancy.Keeper, r *http.Request) (any, error) {
	var o RedundancyOrder
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return nil, errors.Join(redundancy.ErrQuery, err)
	}
	var found bool
	var err error
	switch o.Action {
	case "retry":
		found, err = keeper.RetryDead(o.Body)
	case "drop":
		found, err = keeper.DropDead(o.Body)
	default:
		return nil, errors.Join(redundancy.ErrQuery, errors.New("action: want retry or drop"))
	}
	if err == nil && !found {
		err = errNoLetter
	}
	return struct{}{}, err
}
