package objstore

import "strings"

// Place is where a store's objects are, as its settings say it. The zero Place is that of
// stores in memory, which are nowhere.
type Place struct {
	// Endpoint is the host that answers, with its port unless it is that of the scheme and with
	// the path that the endpoint's URL has, such as "minio.example:9000". All names of AWS S3
	// in a partition are one, because a bucket's name is unique there: "amazonaws.com".
	Endpoint string
	// Region that requests are signed for. On AWS S3 it is the bucket's; elsewhere often any will do.
	Region string
	Bucket string
	// Prefix of every key, empty or ending in a slash.
	Prefix string
}

// Endpoints of AWS S3.
const (
	EndpointAWS      = "amazonaws.com"
	EndpointAWSChina = "amazonaws.com.cn"
)

// OnAWS reports whether the place is a bucket of AWS S3, where a region is a place and no label.
func (p Place) OnAWS() bool { return p.Endpoint == EndpointAWS || p.Endpoint == EndpointAWSChina }

// String is one line for people: s3://bucket/prefix at endpoint (region).
func (p Place) String() string {
	if p == (Place{}) {
		return "memory"
	}
	return "s3://" + strings.TrimSuffix(p.Bucket+"/"+p.Prefix, "/") + "/ at " + p.Endpoint + " (" + p.Region + ")"
}

// Placed is implemented by back ends that are somewhere.
type Placed interface{ Place() Place }

// PlaceOf returns where the back end below all decorators of g is; the zero Place if it does not say.
func PlaceOf(g Getter) Place {
	for {
		if p, ok := g.(Placed); ok {
			return p.Place()
		}
		d, ok := g.(interface{ Unwrap() Store })
		if !ok {
			return Place{}
		}
		g = d.Unwrap()
	}
}
