package s3api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/lifecycle"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/policy"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/sigv4"
)

// User is somebody who may send requests.
type User struct {
	Name   string
	Secret string
	Policy *policy.Document // nil: everything that no bucket policy denies
}

// Options of a Server. Every field is needed but Domain, Observe and SlowBody.
type Options struct {
	Engine *engine.Engine
	// Users gives the users by their access key ids; it is asked for every request.
	Users  func() map[string]User
	Log    *slog.Logger
	Now    func() time.Time
	Region string
	// Domain: requests to <bucket>.<domain> are of that bucket; empty: path-style only.
	Domain string
	// MaxObjectBytes bounds a body.
	MaxObjectBytes int64
	// LeastPart is the least size of a part but the last, bytes; 0 is AWS's 5 MiB.
	LeastPart int64
	// MaxRequests is the number of requests at the same time; more are answered 503 SlowDown.
	MaxRequests int
	// MaxInFlightBytes bounds the memory for bodies that are being received. A request waits for its
	// share, and is answered SlowDown when it gets none in time.
	MaxInFlightBytes int64
	// IdleTimeout is how long a client may take for the next piece of a body.
	IdleTimeout time.Duration
	// EncryptedAtRest says that the file system below the engine encrypts; requests for AES256 are
	// served then.
	EncryptedAtRest bool
	// BlockPublicAccess blocks what a public access block of every bucket would.
	BlockPublicAccess bool
	// OnlyRegion refuses signatures that were made for another region than Region.
	OnlyRegion bool
	// MatchAbsent412 answers If-Match on an absent key with 412 instead of AWS's 404.
	MatchAbsent412 bool
	// Observe is called after every request.
	Observe func(op string, status int, took time.Duration)
	// SlowBody is called for every body that was cut off because others waited for its memory.
	SlowBody func()
}

// Server serves the S3 API as an http.Handler.
type Server struct {
	Options
	auth     *sigv4.Verifier
	requests chan struct{}
	memory   *memory
	idBase   uint64
	ids      atomic.Uint64
	buffers  sync.Pool

	policies     parsed[*policy.Document]
	corsRules    parsed[*corsConfiguration]
	acls         parsed[acl]
	publicBlocks parsed[*publicAccessBlock]
	lifecycles   parsed[*lifecycle.Config]

	deniedMu sync.Mutex
	denied   map[denial]bool
}

// New makes a server.
func New(o Options) *Server {
	if o.LeastPart == 0 {
		o.LeastPart = leastPart
	}
	s := &Server{
		Options: o, requests: make(chan struct{}, o.MaxRequests),
		memory: newMemory(o.MaxInFlightBytes, o.SlowBody),
		idBase: uint64(o.Now().UnixNano()), denied: map[denial]bool{},
	}
	s.auth = sigv4.New(func(id string) (string, bool) {
		u, ok := o.Users()[id]
		return u.Secret, ok
	}, o.Now)
	if o.OnlyRegion {
		s.auth.Region = o.Region
	}
	return s
}

// call is one request while it is served.
type call struct {
	*Server
	w      *recorder
	r      *http.Request
	conn   http.ResponseController // deadlines of the connection
	id     string
	bucket string
	key    string
	query  query
	auth   *sigv4.Auth
	user   User
	// anonymous: the request has no signature. Its user has no name, and a policy that allows nothing.
	anonymous bool
	unreadTag bool      // a condition has asked for a tag of an object that cannot be read
	form      *form     // of a browser's upload
	wanted    lockTexts // the lock that a body asks for
	op        string
	rec       recorder
	values    [10]string // of the answer's header, of which the first set are used; see setHeader
	set       int
}

// setHeader sets a field of the answer. The name must be canonical. http.Header.Set would allocate for each.
func (c *call) setHeader(name, value string) {
	h := c.w.Header()
	if c.set == len(c.values) {
		h[name] = []string{value}
		return
	}
	i := c.set
	c.values[i] = value
	c.set++
	h[name] = c.values[i:c.set:c.set]
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := s.Now()
	c := &call{Server: s, r: r, op: "unknown", rec: recorder{ResponseWriter: w}}
	c.w = &c.rec
	c.conn = *http.NewResponseController(w)
	c.id = strconv.FormatUint(s.idBase+s.ids.Add(1), 36)
	c.setHeader(requestIDHeader, c.id)
	w.Header()["Server"] = serverName
	if r.ContentLength == 0 && strings.EqualFold(r.Header.Get("Expect"), "100-continue") {
		// net/http sends no interim answer before an empty body. botocore takes a final answer that
		// comes in its place for the answer to the next request of the connection, too.
		w.WriteHeader(http.StatusContinue)
	}
	err := s.admit(c)
	if err != nil {
		c.writeError(err)
	}
	if s.Observe != nil {
		s.Observe(c.op, c.w.code(), s.Now().Sub(began))
	}
}

var serverName = []string{"lightmetrics-objectstore"}

func (s *Server) admit(c *call) error {
	// A full server answers at once instead of queueing: the client's own back-off spreads the
	// load, and a queue would hold memory for requests that time out anyway.
	select {
	case s.requests <- struct{}{}:
		defer func() { <-s.requests }()
	default:
		return s3err.SlowDown
	}
	return c.serve()
}

// recorder remembers the status of an answer for the metrics.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

func (r *recorder) code() int {
	if r.status == 0 {
		return http.StatusOK
	}
	return r.status
}

// errAborted means that an answer failed after it had begun. The connection is cut, since that is
// the only way left to tell the client.
var errAborted = errors.New("answer aborted")

// writeError answers a request with an error.
func (c *call) writeError(err error) {
	if errors.Is(err, errAborted) {
		c.Log.Error("an answer was cut off", "op", c.op, "bucket", c.bucket, "key", c.key, "request", c.id, "error", err)
		panic(http.ErrAbortHandler)
	}
	if errors.Is(err, engine.ErrCorrupt) {
		// An answer to HEAD has no body, so the reason is in a header.
		c.setHeader(damagedHeader, damageText(err))
	}
	c.errorOf(err).Write(c.w, c.r, c.id)
}

const (
	requestIDHeader = "X-Amz-Request-Id"
	// damagedHeader says in an error what is damaged, and in a listing how many keys of the page are.
	damagedHeader = "X-Lightmetrics-Damaged"
	// incompleteHeader says that keys of lost writes may be missing from a listing.
	incompleteHeader = "X-Lightmetrics-Incomplete"
	// uncertainHeader says that a lost write may have replaced or deleted this object.
	uncertainHeader = "X-Lightmetrics-Uncertain"
)

func damageText(err error) string {
	var bad *engine.CorruptError
	if errors.As(err, &bad) {
		return bad.Error()
	}
	return "corrupt"
}

// errorOf maps an error to an S3 error. What it does not know is logged and is an InternalError.
func (c *call) errorOf(err error) *s3err.Error {
	var e *s3err.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, engine.ErrNoBucket):
		return s3err.NoSuchBucket
	case errors.Is(err, engine.ErrNotFound):
		return s3err.NoSuchKey
	case errors.Is(err, engine.ErrLocked):
		return s3err.ObjectLocked
	case errors.Is(err, engine.ErrLockOn):
		return s3err.VersioningLocked
	case errors.Is(err, engine.ErrLockNeedsVersions):
		return s3err.LockNeedsVersioning
	case errors.Is(err, engine.ErrPrecondition):
		return s3err.PreconditionFailed
	case errors.Is(err, engine.ErrBucketExists):
		return s3err.BucketExists
	case errors.Is(err, engine.ErrBucketNotEmpty):
		return s3err.BucketNotEmpty
	case errors.Is(err, engine.ErrCorrupt):
		return s3err.ObjectDamaged.With("%s", damageText(err))
	case errors.Is(err, engine.ErrUncertain):
		return s3err.Undecidable
	case errors.Is(err, engine.ErrNoUpload):
		return s3err.NoSuchUpload
	case errors.Is(err, engine.ErrTooLarge):
		return s3err.MaxMessageLength // of a setting of a bucket; those of objects have errors of their own
	case errors.Is(err, engine.ErrQuota):
		return s3err.QuotaExceeded
	case errors.Is(err, engine.ErrNoKey):
		return s3err.KeyUnavailable
	case errors.Is(err, engine.ErrFull):
		return s3err.InsufficientStorage
	case errors.Is(err, engine.ErrUnavailable):
		c.Log.Warn("places of the store do not answer", "op", c.op, "bucket", c.bucket, "key", c.key, "request", c.id, "error", err)
		return s3err.ServiceUnavailable
	case errors.Is(err, engine.ErrPoisoned), errors.Is(err, engine.ErrClosed):
		return s3err.ServiceUnavailable
	// The request was not enqueued in time. Nothing was written, so it may be sent again.
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return s3err.SlowDown
	}
	c.Log.Error("request failed", "op", c.op, "bucket", c.bucket, "key", c.key, "request", c.id, "error", err)
	return s3err.InternalError
}

// serve routes, authenticates and executes a request.
func (c *call) serve() error {
	if err := c.parseAddress(); err != nil {
		return err
	}
	c.allowOrigin()
	if c.r.Method == http.MethodOptions {
		c.op = "Preflight"
		return c.preflight()
	}
	var err error
	if c.query, err = parseQuery(c.r.URL.RawQuery); err != nil {
		return err
	}
	op, routeErr := c.route()
	if routeErr == nil {
		c.op = op.name // set early, so that refused requests are counted under their operation
	}
	// What is no request at all can be said to anybody: it tells nothing of the store.
	if routeErr != nil {
		return routeErr
	}
	// A form carries its signature in its fields, and names its key there.
	if op.name == postObject.name {
		return op.do(c)
	}
	// The signature is verified before any other answer is given: a caller without a key must not
	// learn what exists.
	if err := c.authenticate(op); err != nil {
		return err
	}
	if c.auth.Presigned {
		if err := c.applyHoistedHeaders(); err != nil {
			return err
		}
		// Routed again, since a hoisted x-amz-copy-source makes a PUT a copy.
		if op, routeErr = c.route(); routeErr != nil {
			return routeErr
		}
		c.op = op.name
	}
	if err := c.query.checkParams(op); err != nil {
		return err
	}
	if err := c.refuseHeaders(op.name, c.r.Method, c.r.Header); err != nil {
		return err
	}
	if err := c.checkOwner(); err != nil {
		return err
	}
	return op.do(c)
}

// parseAddress reads bucket and key from host and path.
func (c *call) parseAddress() error {
	path := strings.TrimPrefix(c.r.URL.Path, "/")
	host := c.r.Host
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		host = host[:i]
	}
	// Host names have no case, bucket names are lower-case.
	host = strings.ToLower(host)
	if b, ok := strings.CutSuffix(host, "."+strings.ToLower(c.Domain)); ok && c.Domain != "" {
		c.bucket, c.key = b, path
	} else {
		c.bucket, c.key, _ = strings.Cut(path, "/")
	}
	if c.bucket != "" && !validBucket(c.bucket) {
		return s3err.InvalidBucketName
	}
	if c.key != "" {
		return validKey(c.key)
	}
	return nil
}
