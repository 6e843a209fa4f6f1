mod calm;
mod cases;
mod chaos;
mod codec;
mod world;
