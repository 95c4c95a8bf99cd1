"""The publishers' files: where each lies below the data directory, its checksum and where to fetch it."""

from __future__ import annotations

from typing import NamedTuple

UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
SCIKIT_FEATURE = "https://raw.githubusercontent.com/jundongl/scikit-feature/master/skfeature/data/"
ELEMENTS = "https://hastie.su.domains/ElemStatLearn/datasets/"
MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
T_UMC = "https://raw.githubusercontent.com/AllminerLab/Code-for-T-UMC-master/main/datasets/"
SATIMAGE = "https://raw.githubusercontent.com/YannisSch/Statlog_Landstat_Satellite_Project/main/data/"
CAI = "http://www.cad.zju.edu.cn/home/dengcai/Data/Yale/"


class PublishedFile(NamedTuple):
    """One file of a publisher.

    Attributes
    ----------
    path : str
        Its place below the data directory; a copy that is gzipped, or is not, will do as well.
    sha256 : str
        Of the content once gunzipped: copies are repacked, their content is not.
    address : str
        URL.
    member : str
        Name of the file in the zip archive that the address gives, where it is one.
    """

    path: str
    sha256: str
    address: str
    member: str = ""


SOYBEAN = PublishedFile(
    "soybean/soybean-small.data",
    "f096d1675db0270071311c9f46813b204372370bd68252a5a417bdcff5879717",
    UCI + "soybean/soybean-small.data",
)
SCADI = PublishedFile(
    "scadi/SCADI.csv",
    "035f57f4cf897b3e9935f25aa2839d622d66f247d1e9cb1178d302e37cfdfe3e",
    UCI + "00446/SCADI.zip",
    member="SCADI.csv",
)
BBCSPORT = PublishedFile(
    "bbcsport/bbcsport3vbigRnSp.mat",
    "45bd4106194db65e692aa2f453620759ac3e145d00c00fde620ae61dcf713352",
    T_UMC + "bbcsport3vbigRnSp.mat",
)
YALE = PublishedFile(
    "yale/Yale_64x64.mat", "315433db65209b636ea80f55f921662d6173a5757c9e99ec8b3daea6da2a8233", CAI + "Yale_64x64.mat"
)
MNIST_TRAIN_IMAGES = PublishedFile(
    "mnist/train-images-idx3-ubyte.gz",
    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    MNIST + "train-images-idx3-ubyte.gz",
)
MNIST_TRAIN_LABELS = PublishedFile(
    "mnist/train-labels-idx1-ubyte.gz",
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    MNIST + "train-labels-idx1-ubyte.gz",
)
MNIST_TEST_IMAGES = PublishedFile(
    "mnist/t10k-images-idx3-ubyte.gz",
    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    MNIST + "t10k-images-idx3-ubyte.gz",
)
MNIST_TEST_LABELS = PublishedFile(
    "mnist/t10k-labels-idx1-ubyte.gz",
    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    MNIST + "t10k-labels-idx1-ubyte.gz",
)
USPS_TRAIN = PublishedFile(
    "usps/zip.train.gz", "abc9f5c75b997cabe66b5d01727d5a681c69298e1641a8d37b55433a52129dc0", ELEMENTS + "zip.train.gz"
)
USPS_TEST = PublishedFile(
    "usps/zip.test.gz", "6bde17b4f1cd68e0630cd2751d6495b5795d9165ab2dc4a0be8b7002b732f4cc", ELEMENTS + "zip.test.gz"
)
PENDIGITS_TRAIN = PublishedFile(
    "pendigits/pendigits.tra",
    "e2b9eb9f0d0467e2b64a4816a3420edf2b8043447576f4b84337aba44a9f97d3",
    UCI + "pendigits/pendigits.tra",
)
PENDIGITS_TEST = PublishedFile(
    "pendigits/pendigits.tes",
    "8bd03229c5c5291fefe43e45465dd948d2645bf23328b9d993e0b777666b2015",
    UCI + "pendigits/pendigits.tes",
)
LETTER = PublishedFile(
    "letter/letter-recognition.data",
    "2b89f3602cf768d3c8355267d2f13f2417809e101fc2b5ceee10db19a60de6e2",
    UCI + "letter-recognition/letter-recognition.data",
)
ALLAML = PublishedFile(
    "allaml/ALLAML.mat",
    "068afe0fe1021932e1e7d801294c267de8aeaa9d41899acfac024e72b0d44c1e",
    SCIKIT_FEATURE + "ALLAML.mat",
)
LEUKEMIA = PublishedFile(
    "leukemia/leukemia.mat",
    "eb92382fb77c968864cb0a92a2c77acde7f88ba7fe5fd5a64b98184e3a05269d",
    SCIKIT_FEATURE + "leukemia.mat",
)
COLON = PublishedFile(
    "colon/colon.mat", "ffcdeba03eb67cec403fa1dc9f827c22a6e2c57786bf3e01dfe1b4b3e25e0a2f", SCIKIT_FEATURE + "colon.mat"
)
LUNG = PublishedFile(
    "lung/lung_small.mat",
    "93c6a65eb1f6f9f95ac897010c337254a57c57e7f8c0c9a7963a0e03de8233f4",
    SCIKIT_FEATURE + "lung_small.mat",
)
KDDCUP = PublishedFile(
    "kddcup99/kddcup.data_10_percent.gz",
    "f8c8267ebcd9c0ed1fd7d6277fe5bfff8732e9b7db8e61b873542b2a534b6f9a",
    "http://kdd.ics.uci.edu/databases/kddcup99/kddcup.data_10_percent.gz",
)
WINE = PublishedFile(
    "wine/wine.data", "6be6b1203f3d51df0b553a70e57b8a723cd405683958204f96d23d7cd6aea659", UCI + "wine/wine.data"
)
GLASS = PublishedFile(
    "glass/glass.data", "dd67373f4baf2807345df02cbfef2093d342e61ad0d82a4fb79af43ef8ce449d", UCI + "glass/glass.data"
)
HTRU2 = PublishedFile(
    "htru2/HTRU_2.csv",
    "770932f2a324cb5f0b5ef2a33854fa8e4f47b9cd784b9f7fe60903fa63c8c294",
    UCI + "00372/HTRU2.zip",
    member="HTRU_2.csv",
)
SATIMAGE_TRAIN = PublishedFile(
    "satimage/sat.trn", "8257a4b2da49b394c3de1ec5d76079c0f0b3014916b3bdda23a4dc0cbcec3292", SATIMAGE + "sat.trn"
)
SATIMAGE_TEST = PublishedFile(
    "satimage/sat.tst", "b2d541f5c3b50ed47c270e8b7de20ac413e2549e6c1c5d6098fadbb111aae342", SATIMAGE + "sat.tst"
)
